"""What the core's tests share: kinds, batches, and an exhaustive optimum that shares no code with the planner."""

import gzip
import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from planner_client.contract import OptimizerLayout
from planner_service.core.effort import Effort
from planner_service.core.problem import Batch, Layout, Options, Pool, Problem, ReplicaKind, SourceRow, Strategy
from planner_service.core.solution import Solution
from planner_service.core.solve import solve
from planner_service.core.validate import check
from planner_service.profiles import builtin_profiles
from planner_service.translate import DETERMINISTIC_SHARE, replica_kinds

DATA = Path(__file__).parent.parent / "data"
NO_HURRY = Effort(deterministic_s=DETERMINISTIC_SHARE, remaining_ms=lambda: 1e9)
"""The effort of the default deadline of one second, with no wall clock to cut it."""


def kind(tp: int, pp: int, a: float, b: float, c: float, max_tokens: int) -> ReplicaKind:  # noqa: PLR0917 - as written in formulas
    return ReplicaKind(Layout(tp, 1, pp), "test", a, b, c, max_tokens)


SMALL = kind(1, 1, 4e-5, 0.05, 3.0, 700)
PIPED = kind(2, 2, 2e-5, 0.02, 2.0, 1100)
DEEP = kind(1, 3, 1e-5, 0.012, 1.5, 600)
WIDE = kind(4, 1, 1e-5, 0.015, 4.0, 1500)


def published(
    name: str, num_gpus: int, layout: tuple[int, int, int] | None = None
) -> dict[tuple[int, int], ReplicaKind]:
    optimizer = None if layout is None else OptimizerLayout(dp=layout[0], tp=layout[1], pp=layout[2])
    kinds, _ = replica_kinds(builtin_profiles()[name], num_gpus, optimizer)
    return {(found.tp, found.pp): value for found, value in kinds.items()}


def batch_of(lengths: Sequence[int], alignment: int = 1) -> Batch:
    return Batch(tuple(SourceRow("local", length, n) for length, n in sorted(Counter(lengths).items())), alignment)


def problem_for(
    lengths: Sequence[int],
    strategies: Sequence[Strategy],
    *,
    kinds: Sequence[ReplicaKind] = (),
    num_gpus: int = 64,
    alignment: int = 1,
    **options: object,
) -> Problem:
    used = list(dict.fromkeys([*kinds, *(k for strategy in strategies for k, _ in strategy.groups)]))
    return Problem(
        batch_of(lengths, alignment),
        tuple(used),
        tuple(strategies),
        (Pool(used[0].device, num_gpus, 8),),
        Options(**options),  # type: ignore[arg-type]
        [("local", length) for length in lengths],
    )


def solved(problem: Problem, effort: Effort = NO_HURRY) -> Solution:
    solution = solve(problem, effort)
    check(problem, solution)
    return solution


def stream(name: str) -> list[int]:
    with gzip.open(DATA / f"stream-{name}.txt.gz", "rt") as lines:
        return [int(line) for line in lines]


def batches(lengths: Sequence[int], num_tokens: int, max_length: int = 32768) -> Iterator[list[int]]:
    held: list[int] = []
    for length in lengths:
        if length <= max_length:
            held.append(length)
            if sum(held) >= num_tokens:
                yield held
                held = []


def best_packing_ms(kind_: ReplicaKind, lengths: Sequence[int]) -> float:
    """Try every division of a replica's sequences into micro-batches."""
    best = float("inf") if lengths else 0.0
    bins: list[list[int]] = []

    def place(index: int) -> None:
        nonlocal best
        if index == len(lengths):
            times = [kind_.c + sum(kind_.a * s * s + kind_.b * s for s in held) for held in bins]
            best = min(best, sum(times) + (kind_.pp - 1) * max(times))
            return
        tried = set()
        for held in bins:
            key = tuple(sorted(held))
            if key not in tried and sum(held) + lengths[index] <= kind_.max_tokens:
                tried.add(key)
                held.append(lengths[index])
                place(index + 1)
                held.pop()
        if lengths[index] <= kind_.max_tokens:
            bins.append([lengths[index]])
            place(index + 1)
            bins.pop()

    if lengths:
        place(0)
    return best


def _splits(total: int, parts: int) -> Iterator[tuple[int, ...]]:
    if parts == 1:
        yield (total,)
        return
    for first in range(total + 1):
        for rest in _splits(total - first, parts - 1):
            yield (first, *rest)


def best_makespan_ms(
    replicas: Sequence[ReplicaKind], lengths: Sequence[int], known: dict[tuple[int, tuple[int, ...]], float]
) -> float:
    """Try every dispatch of the sequences, each replica packed in every way. ``known`` is kept between calls."""
    distinct = sorted(set(lengths))
    best = float("inf")
    for combination in itertools.product(*(_splits(list(lengths).count(s), len(replicas)) for s in distinct)):
        worst = 0.0
        for j, replica in enumerate(replicas):
            held = tuple(s for s, split in zip(distinct, combination, strict=True) for _ in range(split[j]))
            if (j, held) not in known:
                known[j, held] = best_packing_ms(replica, held)
            worst = max(worst, known[j, held])
            if worst >= best:
                break
        best = min(best, worst)
    return best
