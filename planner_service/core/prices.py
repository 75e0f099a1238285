"""What replicas are worth at one time: many strategies ranked, and ruled out, by one product of matrices.

Any weights of `planner_service.core.bounds` prove a time T too short for a strategy whose replicas' capacities come to
less than what the batch asks for on its kinds. For fixed weights and T a replica of a kind is worth one number, so that
a strategy is worth the sum over its replicas; what the batch asks for depends only on which kinds the strategy has.
"""

from collections.abc import Sequence

import numpy as np

from planner_service.core.bounds import CapacityClass, Weights, capacity_ms
from planner_service.core.length_table import LengthTable
from planner_service.core.problem import Floats

SHARES = (0.0, 0.5, 1.0)


def guessed_weights(table: LengthTable) -> list[Weights]:
    """Weights that are cheap to guess: kinds weighed by their ranks, or so that the batch costs the same on all."""
    whole_batch = table.work_ms @ table.counts
    evened = [1.0 / value if value > 0 else 1.0 for value in whole_batch]
    by_ranks = [float(kind.num_ranks) for kind in table.kinds]
    classes = tuple(CapacityClass(group, 1, None) for group in range(len(table.kinds)))
    return [
        Weights(
            classes,
            tuple(weight),
            tuple(value * share * kind.c / kind.max_tokens for kind, value in zip(table.kinds, weight, strict=True)),
        )
        for weight in (by_ranks, evened)
        for share in SHARES
    ]


def charges(table: LengthTable, weights: Weights, time_ms: float) -> Floats:
    """Least charge of each length on each kind, over the classes that can end in time. Shape (K, D)."""
    charged = np.full(table.work_ms.shape, np.inf)
    for entry, work, token in zip(weights.classes, weights.work, weights.token, strict=True):
        kind = table.kinds[entry.group]
        if kind.c * (entry.low + kind.pp - 1) <= time_ms:
            own = work * table.work_ms[entry.group] + token * table.lengths
            charged[entry.group] = np.minimum(charged[entry.group], own)
    return charged


class Prices:
    """Worth of replicas and demands of a batch at one time, under several weights.

    Parameters
    ----------
    table
        Costs of the batch on all kinds.
    weights
        Weights over all kinds, at least one.
    time_ms
        The time.
    """

    def __init__(self, table: LengthTable, weights: Sequence[Weights], time_ms: float) -> None:
        self._counts = table.counts
        self._held = table.counts > 0
        self._runs = table.alone_ms <= time_ms
        self._charged = [charges(table, one, time_ms) for one in weights]
        self._worth = np.array([self._value(table, one, time_ms) for one in weights])
        self._demands: dict[bytes, Floats] = {}

    @staticmethod
    def _value(table: LengthTable, weights: Weights, time_ms: float) -> list[float]:
        """Most that one replica of each kind can do in time. Length K."""
        worth = [0.0] * len(table.kinds)
        for entry, work, token in zip(weights.classes, weights.work, weights.token, strict=True):
            capacity = capacity_ms(table.kinds[entry.group], time_ms, work, token, entry.low, entry.high)
            worth[entry.group] = max(worth[entry.group], capacity)
        return worth

    def _demand(self, present: "np.typing.NDArray[np.bool_]") -> Floats:
        key = present.tobytes()
        if key not in self._demands:
            runs = self._runs[present]
            least = [np.where(runs, charged[present], np.inf).min(axis=0) for charged in self._charged]
            self._demands[key] = np.array([one[self._held] @ self._counts[self._held] for one in least])
        return self._demands[key]

    def slack(self, strategies: Sequence[Sequence[int]]) -> Floats:
        """Share by which each strategy's replicas are worth more than the batch asks for, under the tightest weights.

        Parameters
        ----------
        strategies
            Numbers of replicas of each kind.

        Returns
        -------
        Floats
            Shape (S,); a negative value proves that the strategy needs more time than this.
        """
        counts = np.array(strategies, float)
        demands = np.array([self._demand(row > 0) for row in counts])
        worth = counts @ self._worth.T
        never = np.isinf(demands)
        share = np.where(never, -1.0, worth / np.where(never | (demands <= 0), 1.0, demands) - 1.0)
        return np.asarray(np.where(demands <= 0, 0.0, share).min(axis=1))
