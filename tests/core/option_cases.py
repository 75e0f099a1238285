"""Plans under options, and exhaustive optima under them that share no code with the planner."""

import itertools
from collections.abc import Iterator, Sequence

from planner_service.core.bounds import quick_strategy_bound
from planner_service.core.dispatch import first_assignment, keeps_rules
from planner_service.core.items import MAX_ITEMS, Workload, bundle_tokens, items_of
from planner_service.core.length_table import LengthTable
from planner_service.core.local_search import Improver
from planner_service.core.problem import GroupRow, Options, Problem, ReplicaKind, Strategy
from planner_service.core.rules import PackingRules
from planner_service.core.screen import screen
from planner_service.core.solution import Bounds, Solution, finish
from planner_service.core.validate import check

Unit = tuple[int, ...]
"""Lengths of one sequence or of an atomic group."""


def planned(problem: Problem, strategy: Strategy | None = None, most_steps: int = 200) -> Solution | None:
    """Screen, assign, improve and check on one candidate; None if no assignment keeps the rules."""
    screened = screen(problem)
    chosen = strategy or screened.usable[0]
    rules = PackingRules.of(problem.options)
    many = screened.batch.num_sequences > MAX_ITEMS
    most = bundle_tokens(screened.batch.num_occupied_tokens, chosen, rules) if many else 0
    items = items_of(screened.batch, most, groups=screened.groups, is_padded=rules.is_padded)
    work = Workload.of(items, tuple(kind for kind, _ in chosen.groups), rules)
    dispatched = first_assignment(chosen, work)
    if dispatched is None:
        return None
    assert keeps_rules(dispatched, work)
    improved = Improver(work, dispatched, lambda: True).run(0.0, most_steps)
    assert keeps_rules(improved, work)
    assert improved.makespan_ms <= dispatched.makespan_ms * (1 + 1e-9)
    bound = 0.0
    if screened.batch.num_sequences:
        table = LengthTable.of(problem.kinds, screened.batch)
        bound = quick_strategy_bound(chosen, table.rows(chosen))
    scope = "strategy" if problem.candidates else "all-strategies"
    bounds = Bounds(bound, scope, 0.0, "heuristic", cut_by_wall_clock=False)
    solution = finish(problem, screened, chosen, improved, items, bounds)
    check(problem, solution)
    return solution


def groups_of(units: Sequence[Unit], source: str = "local") -> tuple[GroupRow, ...]:
    """Turn units of several sequences into group rows."""
    several = sorted(tuple(sorted(unit)) for unit in units if len(unit) > 1)
    return tuple(GroupRow(source, lengths, len(list(same))) for lengths, same in itertools.groupby(several))


def _partitions(units: Sequence[Unit]) -> Iterator[list[list[Unit]]]:
    if not units:
        yield []
        return
    first, *rest = units
    for partition in _partitions(rest):
        yield [[first], *partition]
        for number in range(len(partition)):
            yield [*partition[:number], [first, *partition[number]], *partition[number + 1 :]]


def _tokens_and_ms(kind: ReplicaKind, held: Sequence[Unit], *, is_padded: bool) -> tuple[int, float]:
    lengths = [length for unit in held for length in unit]
    if is_padded:
        lengths = [max(lengths)] * len(lengths)
    return sum(lengths), kind.c + sum(kind.a * s * s + kind.b * s for s in lengths)


def packings_by_count(kind: ReplicaKind, units: Sequence[Unit], options: Options) -> dict[int, float]:
    """Least makespan of a replica for each number of micro-batches that holds the units and is permitted by itself."""
    best: dict[int, float] = {}
    for partition in _partitions(units):
        charged = [_tokens_and_ms(kind, held, is_padded=options.is_padded) for held in partition]
        if any(tokens > kind.max_tokens for tokens, _ in charged):
            continue
        count = len(partition)
        if count % options.count_multiple or (options.at_least_stages and 0 < count < kind.pp):
            continue
        if not count and not options.idle_allowed:
            continue
        times = [time for _, time in charged]
        makespan = sum(times) + (kind.pp - 1) * max(times, default=0.0)
        best[count] = min(best.get(count, float("inf")), makespan)
    return best


def best_under(replicas: Sequence[ReplicaKind], units: Sequence[Unit], options: Options) -> float:
    """Try every assignment and every packing; infinite if none keeps the options."""
    best = float("inf")
    known: dict[tuple[ReplicaKind, tuple[Unit, ...]], dict[int, float]] = {}
    for places in itertools.product(range(len(replicas)), repeat=len(units)):
        by_replica = []
        for j, kind in enumerate(replicas):
            held = tuple(sorted(unit for unit, place in zip(units, places, strict=True) if place == j))
            if (kind, held) not in known:
                known[kind, held] = packings_by_count(kind, held, options)
            by_replica.append(known[kind, held])
        if options.equal_counts:
            common = set.intersection(*(set(counts) for counts in by_replica))
            choices = [max(counts[count] for counts in by_replica) for count in common]
        else:
            choices = [max(min(counts.values()) for counts in by_replica)] if all(by_replica) else []
        best = min([best, *choices])
    return best
