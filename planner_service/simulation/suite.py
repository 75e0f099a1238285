"""The cases that `hydraulis bench planning` measures: published profiles on real streams."""

from dataclasses import dataclass
from typing import Literal

from planner_service.core.dispatch import first_assignment
from planner_service.core.items import Workload, items_of
from planner_service.core.place import place
from planner_service.core.problem import Problem, ReplicaKind, Strategy
from planner_service.profiles import builtin_profiles
from planner_service.workloads import STREAMS

Suite = Literal["quick", "full"]

MAX_LENGTH = 32_768
"""Longest sequence of every case, in tokens; longer ones are left out."""

LARGE_GPUS = 1024
"""The large cluster, on which `LARGE_PROFILE` alone is measured."""

LARGE_PROFILE = "llama-32b-a800-80g"


@dataclass(frozen=True, order=True)
class Case:
    """One stream on one cluster."""

    profile: str
    num_gpus: int
    num_tokens: int
    stream: str
    num_iterations: int = 5

    @property
    def is_large(self) -> bool:
        """Whether the bars of the large cluster apply."""
        return self.num_gpus >= LARGE_GPUS

    def __str__(self) -> str:
        return f"{self.profile}, {self.num_gpus} GPUs, {self.num_tokens:,} tokens, {self.stream}"


def cases_of(suite: Suite, only: str | None = None) -> tuple[Case, ...]:
    """List the cases of a suite, feasible or not; those of one profile if ``only`` names it.

    Each has 5 iterations, but those that the stream is too short for have as many as it holds.

    Raises
    ------
    ValueError
        If there is no such profile.
    """
    names = tuple(builtin_profiles())
    if only is not None and only not in names:
        raise ValueError(f"there is no profile {only!r}; use {', '.join(names)}")
    chosen = (only,) if only is not None else names
    if suite == "quick":
        return tuple(
            sorted(Case(name, 32, 100_000, stream, 2) for name in chosen for stream in ("azure-conv", "github"))
        )
    cases = [
        Case(name, num_gpus, num_tokens, stream)
        for name in chosen
        for num_gpus in (16, 32, 64)
        for num_tokens in (100_000, 200_000)
        for stream in STREAMS
    ]
    if LARGE_PROFILE in chosen:
        cases += [
            Case(LARGE_PROFILE, LARGE_GPUS, 1_600_000, stream, 2 if stream == "reuters21578" else 5)
            for stream in STREAMS
        ]
    return tuple(sorted(cases))


def heterogeneous_strategy(problem: Problem, longest: int) -> Strategy | None:
    """Make one replica of the fewest ranks that holds the longest sequence; the others are of the most promising kind.

    Most promising is the least makespan of the problem's batch dispatched longest first: a fixed rule, so that a case
    always measures the same strategy.

    Parameters
    ----------
    problem
        A batch, kinds and GPUs of one type.
    longest
        Longest sequence that the strategy has to hold, in tokens.

    Returns
    -------
    Strategy | None
        None if the GPUs do not suffice for two kinds of replica, or cannot be laid out.
    """
    holding = [kind for kind in problem.kinds if kind.max_tokens >= longest]
    if not holding:
        return None
    large = min(holding, key=lambda kind: (kind.num_ranks, sequence_gpu_ms(kind, longest), kind.layout))
    left = problem.num_gpus - large.num_ranks
    strategies = [
        strategy
        for kind in problem.kinds
        if kind != large and kind.num_ranks <= left
        for strategy in [Strategy.of([(large, 1), (kind, left // kind.num_ranks)])]
        if place(strategy.replicas, problem.pools) is not None
    ]
    items = items_of(problem.batch, 0)

    def makespan_ms(strategy: Strategy) -> float:
        kinds = tuple(kind for kind, _ in strategy.groups)
        found = first_assignment(strategy, Workload.of(items, kinds))
        return float("inf") if found is None else found.makespan_ms

    return min(strategies, key=lambda strategy: (makespan_ms(strategy), str(strategy)), default=None)


def sequence_gpu_ms(kind: ReplicaKind, length: int) -> float:
    """GPU milliseconds of one sequence of ``length`` tokens, micro-batch overhead left out."""
    return kind.num_ranks * (kind.a * length**2 + kind.b * length)
