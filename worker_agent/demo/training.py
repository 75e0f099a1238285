"""What each rank of the demo does: the same global batches twice, plainly packed and planned, taking turns."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

import torch
from torch import Tensor

from planner_client.client import PlannerClient
from planner_client.contract import Plan, PlanOptions, PlanRequest, ReplicaGroup
from worker_agent.demo.corpus import VOCAB_SIZE, Corpus, draw_batches, held_by
from worker_agent.demo.outcome import MODES, IterationRecord, Mode
from worker_agent.demo.settings import DemoSettings
from worker_agent.executor.agree import share_plan
from worker_agent.executor.collectives import gather_values
from worker_agent.executor.runner import IterationResult, IterationRunner
from worker_agent.executor.shape import DecoderConfig
from worker_agent.executor.shards import ShardedState
from worker_agent.local_ranks import Emit
from worker_agent.prefetch import FetchedPlan, PlanPrefetcher

DECIDER = 0
"""The rank that asks the planner."""


@dataclass(frozen=True)
class TrainingJob:
    """Everything a rank needs to train.

    Attributes
    ----------
    planner_url
        Where the planner listens.
    profile
        Name of the profile it plans by.
    """

    settings: DemoSettings
    corpus: Corpus
    planner_url: str
    profile: str


def decoder_config(settings: DemoSettings) -> DecoderConfig:
    """Return the shape of the decoder that a run profiles and trains."""
    return DecoderConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=settings.hidden_size,
        num_layers=settings.num_layers,
        num_heads=settings.num_heads,
    )


def plan_request(job: TrainingJob, batch: list[int], iteration: int, mode: Mode) -> PlanRequest:
    """Return what the planner is asked for one global batch: its lengths by source, in the order held."""
    num_ranks = job.settings.num_ranks
    lengths = job.corpus.lengths
    return PlanRequest(
        profile=job.profile,
        num_gpus=num_ranks,
        strategies=[[ReplicaGroup(tp=1, pp=1, num_replicas=num_ranks)]],
        iteration=iteration,
        lengths={
            f"rank-{rank}": [lengths[index] for index in held_by(batch, rank, num_ranks)] for rank in range(num_ranks)
        },
        options=PlanOptions(
            method="plain" if mode == "plain" else "hydraulis",
            seed=job.settings.seed,
            deadline_ms=job.settings.deadline_ms,
            target_gap=job.settings.target_gap,
        ),
    )


def train_rank(rank: int, num_ranks: int, job: TrainingJob, emit: Emit) -> None:
    """Train both modes on one rank; the deciding rank emits an `IterationRecord` for each iteration of each mode.

    The modes take turns inside every iteration, and take turns at going first, so that other load on the machine
    meets both alike.
    """
    settings = job.settings
    batches = draw_batches(
        len(job.corpus.sequences),
        num_batches=settings.iterations,
        num_sequences=settings.num_sequences,
        seed=settings.seed,
    )
    runners = {mode: _new_runner(settings) for mode in MODES}
    with ExitStack() as stack:
        prefetchers = _prefetchers(job, batches, stack) if rank == DECIDER else None
        for iteration, batch in enumerate(batches):
            held = token_ids(job.corpus, held_by(batch, rank, num_ranks))
            for mode in MODES if iteration % 2 == 0 else reversed(MODES):
                fetched, plan = next_plan(prefetchers[mode] if prefetchers else None, iteration)
                if prefetchers and mode == "planned" and iteration + 1 < len(batches):
                    prefetchers[mode].start(iteration + 1)
                result = runners[mode].run(plan, held)
                record = _record(mode, iteration, plan, result, fetched)
                if rank == DECIDER:
                    emit(record)


def _new_runner(settings: DemoSettings) -> IterationRunner:
    state = ShardedState(
        decoder_config(settings),
        seed=settings.seed,
        make_optimizer=lambda groups: torch.optim.AdamW(groups, lr=settings.learning_rate),
    )
    return IterationRunner(state)


def _prefetchers(job: TrainingJob, batches: list[list[int]], stack: ExitStack) -> dict[Mode, PlanPrefetcher]:
    client = stack.enter_context(PlannerClient(job.planner_url))

    def fetcher(mode: Mode) -> Callable[[int], Plan]:
        return lambda iteration: client.plan(plan_request(job, batches[iteration], iteration, mode))

    return {mode: stack.enter_context(PlanPrefetcher(fetcher(mode))) for mode in MODES}


def next_plan(prefetcher: PlanPrefetcher | None, iteration: int) -> tuple[FetchedPlan | None, Plan]:
    """Give every rank the plan that the deciding rank fetched, or the same fault; a collective that every rank calls.

    Parameters
    ----------
    prefetcher
        On the deciding rank, what fetches the plan; None on the others.

    Raises
    ------
    worker_agent.executor.faults.PlanningFailed
        On every rank, if the deciding rank has no plan.
    """
    if prefetcher is None:
        return None, share_plan()
    try:
        fetched = prefetcher.take(iteration)
    except Exception as fault:  # noqa: BLE001 - whatever kept the plan away is every rank's fault, not this one's alone
        return None, share_plan(fault)
    return fetched, share_plan(fetched.plan)


def _record(
    mode: Mode, iteration: int, plan: Plan, result: IterationResult, fetched: FetchedPlan | None
) -> IterationRecord:
    """Bring the ranks' measurements together; a collective that every rank calls."""
    measured = gather_values([result.compute_ms, result.cpu_ms, result.wall_ms], None, "gathering measurements")
    predicted = {rank: replica.makespan_ms for replica in plan.replicas for rank in replica.ranks}
    return IterationRecord(
        iteration=iteration,
        mode=mode,
        digest=plan.digest,
        solved_by=plan.solved_by,
        loss=result.loss,
        num_sequences=plan.num_sequences,
        num_tokens=plan.num_tokens,
        num_micro_batches=sum(len(replica.micro_batches) for replica in plan.replicas),
        predicted_ms=tuple(predicted.get(rank, 0.0) for rank in range(len(measured))),
        measured_ms=tuple(compute_ms for compute_ms, _, _ in measured),
        cpu_ms=tuple(cpu_ms for _, cpu_ms, _ in measured),
        wall_ms=max(wall_ms for _, _, wall_ms in measured),
        planning_ms=plan.planning_ms,
        fetch_ms=fetched.fetch_ms if fetched else 0.0,
        waited_ms=fetched.waited_ms if fetched else 0.0,
        gap=plan.gap,
    )


def token_ids(corpus: Corpus, indices: list[int]) -> list[Tensor]:
    """Return the token ids of some of the corpus's sequences, each of shape (length,), int64."""
    return [torch.tensor(list(corpus.sequences[index]), dtype=torch.int64) for index in indices]
