"""What each rank of the demo's second part does: every iteration by another strategy, one rank alone beside it."""

from contextlib import ExitStack
from dataclasses import dataclass

import torch

from planner_client.client import PlannerClient
from planner_client.contract import Plan, PlanOptions, PlanRequest, Profile
from worker_agent.demo.alone import TrainingAlone
from worker_agent.demo.changing import ChangingRecord, ReplicaRun, candidates, changing_max_length
from worker_agent.demo.corpus import VOCAB_SIZE, Corpus, draw_batches, held_by
from worker_agent.demo.settings import DemoSettings
from worker_agent.demo.training import DECIDER, next_plan, token_ids
from worker_agent.executor.collectives import gather_values
from worker_agent.executor.runner import IterationResult, IterationRunner
from worker_agent.executor.shape import DecoderConfig
from worker_agent.executor.shards import ShardedState
from worker_agent.local_ranks import Emit
from worker_agent.prefetch import PlanPrefetcher


@dataclass(frozen=True)
class ChangingJob:
    """Everything a rank of the second part needs.

    Attributes
    ----------
    planner_url
        Where the planner listens.
    profile
        The whole profile it plans by.
    """

    settings: DemoSettings
    corpus: Corpus
    planner_url: str
    profile: Profile


def changing_config(settings: DemoSettings) -> DecoderConfig:
    """Return the shape of the decoder that the second part trains."""
    return DecoderConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=settings.hidden_size,
        num_layers=settings.changing_layers,
        num_heads=settings.changing_heads,
    )


def changing_batches(settings: DemoSettings, corpus: Corpus) -> list[list[int]]:
    """Draw the second part's global batches, one for each strategy, as indices of the corpus's shorter sequences."""
    most = changing_max_length(settings)
    shorter = [index for index, length in enumerate(corpus.lengths) if length <= most]
    batches = draw_batches(
        len(shorter),
        num_batches=len(settings.strategies),
        num_sequences=min(settings.num_sequences, len(shorter)),
        seed=settings.seed,
    )
    return [[shorter[number] for number in batch] for batch in batches]


def changing_request(job: ChangingJob, batch: list[int], iteration: int) -> PlanRequest:
    """Return what the planner is asked for one global batch: its lengths by source, and the one strategy to plan."""
    settings = job.settings
    lengths = job.corpus.lengths
    num_ranks = settings.changing_ranks
    return PlanRequest(
        profile=job.profile,
        num_gpus=num_ranks,
        strategies=[candidates(settings)[iteration]],
        iteration=iteration,
        lengths={
            f"rank-{rank}": [lengths[index] for index in held_by(batch, rank, num_ranks)] for rank in range(num_ranks)
        },
        options=PlanOptions(seed=settings.seed, deadline_ms=settings.deadline_ms, target_gap=settings.target_gap),
    )


def train_changing_rank(rank: int, num_ranks: int, job: ChangingJob, emit: Emit) -> None:
    """Train by one strategy after the other on one rank; the deciding rank emits a `ChangingRecord` an iteration.

    After each iteration the deciding rank trains the reference on the same global batch while the others wait.
    """
    settings = job.settings
    config = changing_config(settings)
    batches = changing_batches(settings, job.corpus)
    state = ShardedState(
        config,
        seed=settings.seed,
        make_optimizer=lambda groups: torch.optim.AdamW(groups, lr=settings.changing_learning_rate),
    )
    runner = IterationRunner(state)
    alone = TrainingAlone(config, seed=settings.seed, learning_rate=settings.changing_learning_rate)
    with ExitStack() as stack:
        prefetcher = _prefetcher(job, batches, stack) if rank == DECIDER else None
        for iteration, batch in enumerate(batches):
            _, plan = next_plan(prefetcher, iteration)
            if prefetcher and iteration + 1 < len(batches):
                prefetcher.start(iteration + 1)
            result = runner.run(plan, token_ids(job.corpus, held_by(batch, rank, num_ranks)))
            measured = _measured(result)
            if rank == DECIDER:
                reference_loss = alone.step(token_ids(job.corpus, batch))
                emit(_record(iteration, plan, result.loss, reference_loss, measured))
    runner.close()


def _prefetcher(job: ChangingJob, batches: list[list[int]], stack: ExitStack) -> PlanPrefetcher:
    client = stack.enter_context(PlannerClient(job.planner_url))
    return stack.enter_context(
        PlanPrefetcher(lambda iteration: client.plan(changing_request(job, batches[iteration], iteration)))
    )


def _measured(result: IterationResult) -> list[list[float]]:
    """Bring each rank's wall, computing and propagation time together (ms); a collective that every rank calls."""
    return gather_values([result.wall_ms, result.compute_ms, result.propagate_ms], None, "gathering measurements")


def _record(
    iteration: int, plan: Plan, loss: float, reference_loss: float, measured: list[list[float]]
) -> ChangingRecord:
    slowest_wall_ms, _, propagation_ms = max(measured, key=lambda rank: rank[1])
    return ChangingRecord(
        iteration=iteration,
        strategy=plan.strategy,
        digest=plan.digest,
        replicas=tuple(
            ReplicaRun(
                tp=replica.tp,
                pp=replica.pp,
                ranks=tuple(replica.ranks),
                num_sequences=sum(entry.count for batch in replica.micro_batches for entry in batch.sequences),
                num_tokens=sum(batch.num_tokens for batch in replica.micro_batches),
                num_micro_batches=len(replica.micro_batches),
            )
            for replica in plan.replicas
        ),
        loss=loss,
        reference_loss=reference_loss,
        num_sequences=plan.num_sequences,
        num_tokens=plan.num_tokens,
        wall_ms=max(wall_ms for wall_ms, _, _ in measured),
        propagation_ms=tuple(propagated for _, _, propagated in measured),
        propagation_share=propagation_ms / slowest_wall_ms,
        planning_ms=plan.planning_ms,
        gap=plan.gap,
    )
