"""What micro-batches take, learnt from the times that a plan predicts: pure.

The planner charges a micro-batch ``c + sum (a s^2 + b s)`` ms over its sequences' lengths s. A plan carries the times
and not the coefficients; least squares over a replica kind's micro-batches gives them back.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from planner_client.charged import charged_lengths
from planner_client.contract import Plan, Replica

Kind = tuple[int, int, int, str, int]
"""Degrees tp, cp, pp, the device and the most tokens of a micro-batch: replicas alike in these are alike."""

Floats = npt.NDArray[np.float64]

_TERMS = ((0, 1, 2), (1, 2), (0, 1), (1,), (0, 2), (0,), (2,))
"""Which of a, b and c are fitted, in order of preference where several explain the times equally well.

Without enough variety among micro-batches a is left out first: a mistake in it grows with the square of a length.
"""

_SINGULAR = 1e-9
_EQUALLY_WELL = 1e-6


@dataclass(frozen=True)
class Rates:
    """Cost of micro-batches on one pipeline stage.

    Attributes
    ----------
    a_ms_per_token2, b_ms_per_token, c_ms
        As in a profile.
    """

    a_ms_per_token2: float
    b_ms_per_token: float
    c_ms: float

    def sequence_ms(self, num_tokens: int) -> float:
        """Return the cost (ms) of one sequence of that many tokens."""
        return (self.a_ms_per_token2 * num_tokens + self.b_ms_per_token) * num_tokens

    def scaled(self, share: float) -> "Rates":
        """Return the rates of a kind on which a token takes this share of the time."""
        return Rates(self.a_ms_per_token2 * share, self.b_ms_per_token * share, self.c_ms)


def kind_of(replica: Replica) -> Kind:
    """Return a replica's kind."""
    return (replica.tp, replica.cp, replica.pp, replica.device, replica.max_tokens)


def rates_of(plan: Plan) -> dict[Kind, Rates]:
    """Learn the rates of a plan's replica kinds.

    A kind that is idle in the plan is taken for as fast, rank for rank, as the kind with most micro-batches.

    Returns
    -------
    dict
        By kind; empty if the plan predicts no times.
    """
    rows: dict[Kind, list[tuple[float, float, float]]] = {}
    for replica in plan.replicas:
        own = rows.setdefault(kind_of(replica), [])
        for micro_batch in replica.micro_batches:
            taken = charged_lengths(micro_batch, plan.alignment, is_padded=plan.cost == "padded")
            squares = math.fsum(float(length) * length * count for length, count in taken)
            own.append((squares, float(sum(length * count for length, count in taken)), micro_batch.time_ms))
    fitted = {kind: fit for kind, own in rows.items() if (fit := _fit(own)) is not None}
    if not fitted:
        return {}
    reference = max(fitted, key=lambda kind: (len(rows[kind]), kind))
    for kind in rows:
        if kind not in fitted:
            fitted[kind] = fitted[reference].scaled(_num_ranks(reference) / _num_ranks(kind))
    return fitted


def _num_ranks(kind: Kind) -> int:
    tp, cp, pp, *_ = kind
    return tp * cp * pp


def _fit(rows: Sequence[tuple[float, float, float]]) -> Rates | None:
    """Fit non-negative coefficients; None where there is nothing to fit to."""
    if not any(time_ms > 0 for *_, time_ms in rows):
        return None
    table = np.array(rows, dtype=np.float64)
    features = np.column_stack([table[:, :2], np.ones(len(rows))])
    times = table[:, 2]
    scales = features.max(axis=0)
    best: tuple[float, Floats] | None = None
    for terms in _TERMS:
        columns = list(terms)
        scaled, _, rank, _ = np.linalg.lstsq(features[:, columns] / scales[columns], times, rcond=_SINGULAR)
        if rank < len(columns) or scaled.min() < -_EQUALLY_WELL * times.max():
            continue
        coefficients = np.zeros(3)
        coefficients[columns] = np.maximum(scaled, 0.0) / scales[columns]
        error = float(np.abs(features @ coefficients - times).max() / times.max())
        if best is None or error < best[0] - _EQUALLY_WELL:
            best = (error, coefficients)
    if best is None:
        return None
    a, b, c = (float(value) for value in best[1])
    return Rates(a, b, c)
