"""Strategies worth trying for N GPUs when the request names none.

Few long sequences need layouts that hold them; the many short ones run cheapest on small layouts. Candidates are
homogeneous strategies, and mixtures of a few replicas that hold the longest sequence with a filling of the kinds that
need the fewest GPU milliseconds for the rest.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from planner_service.core.bounds import RANKING_TOLERANCE, LengthTable, quick_strategy_bound
from planner_service.core.problem import ReplicaKind, Strategy

LONG_KINDS = 4
LONG_REPLICAS = (1, 2, 3, 4, 6)
MIXTURES_REFINED = 8
MAX_STRATEGIES = 160
"""Strategies returned, those with the least bounds."""


def _gpu_ms_of_longest(table: LengthTable, row: int) -> float:
    return float(table.kinds[row].num_ranks * (table.work_ms[row, -1] + table.kinds[row].c))


def _filled(groups: Sequence[tuple[ReplicaKind, int]], fills: Sequence[ReplicaKind], num_gpus: int) -> Strategy:
    """Add fill replicas, each kind as often as it fits what is left."""
    left = num_gpus - sum(kind.num_ranks * num_replicas for kind, num_replicas in groups)
    parts = list(groups)
    for kind in fills:
        if left >= kind.num_ranks:
            parts.append((kind, left // kind.num_ranks))
            left %= kind.num_ranks
    return Strategy.of(parts)


def _mixtures(table: LengthTable, num_gpus: int) -> Iterator[Strategy]:
    """Homogeneous strategies, and a few replicas for the longest sequence with one kind for the rest."""
    kinds = [kind for kind in table.kinds if kind.num_ranks <= num_gpus]
    smallest = min(kinds, key=lambda kind: kind.num_ranks)
    holding = [
        row
        for row, kind in enumerate(table.kinds)
        if kind.num_ranks <= num_gpus and np.isfinite(table.alone_ms[row, -1])
    ]
    for row in holding:
        yield _filled([], [table.kinds[row]], num_gpus)
    for row in sorted(holding, key=lambda row: _gpu_ms_of_longest(table, row))[:LONG_KINDS]:
        long_kind = table.kinds[row]
        for num_long in LONG_REPLICAS:
            if num_long * long_kind.num_ranks < num_gpus:
                for fill in kinds:
                    yield _filled([(long_kind, num_long)], [fill, smallest], num_gpus)


def _refined(strategy: Strategy, table: LengthTable, num_gpus: int) -> Iterator[Strategy]:
    """Give half of the GPUs of the strategy's most numerous kind to each other kind."""
    fill, num_fill = max(strategy.groups, key=lambda group: group[0].num_ranks * group[1])
    others = [group for group in strategy.groups if group[0] != fill]
    for kind in table.kinds:
        num_new = (num_fill // 2) * fill.num_ranks // kind.num_ranks
        if kind != fill and num_new:
            yield _filled([*others, (kind, num_new)], [fill], num_gpus)


def generate(table: LengthTable, num_gpus: int) -> tuple[Strategy, ...]:
    """Generate strategies of at most ``num_gpus`` ranks that hold the table's longest length.

    Parameters
    ----------
    table
        Costs of the batch on every kind; not empty.
    num_gpus
        Ranks to use.

    Returns
    -------
    tuple[Strategy, ...]
        Those with the least lower bounds, best first; empty if no kind holds the longest length.
    """
    bounds: dict[Strategy, float] = {}

    def by_bound(strategy: Strategy) -> tuple[float, str]:
        if strategy not in bounds:
            bounds[strategy] = quick_strategy_bound(strategy, table.rows(strategy), (0.5,), RANKING_TOLERANCE)
        return bounds[strategy], str(strategy)

    mixtures = sorted(dict.fromkeys(_mixtures(table, num_gpus)), key=by_bound)
    refined = [new for strategy in mixtures[:MIXTURES_REFINED] for new in _refined(strategy, table, num_gpus)]
    longest = int(table.lengths[-1])
    distinct = dict.fromkeys(s for s in [*mixtures, *refined] if s.max_tokens >= longest)
    return tuple(sorted(distinct, key=by_bound)[:MAX_STRATEGIES])
