"""What collectives cost: latency and time for each byte, by kind and number of ranks."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from planner_service.core.fit import Errors
from planner_service.core.fit_robust import fit_robustly


@dataclass(frozen=True)
class FittedCollective:
    """One kind of collective among so many ranks: ``latency_ms + ms_per_byte * bytes``."""

    kind: str
    num_ranks: int
    latency_ms: float
    ms_per_byte: float
    num_samples: int
    median_abs_pct_error: float


def fit_collectives(samples: Iterable[tuple[str, int, int, float]]) -> list[FittedCollective]:
    """Fit each kind and number of ranks, ascending, to its samples.

    Parameters
    ----------
    samples
        Kind, ranks, bytes that each rank puts in, and time (ms).
    """
    grouped: dict[tuple[str, int], list[tuple[int, float]]] = {}
    for kind, num_ranks, num_bytes, time_ms in samples:
        grouped.setdefault((kind, num_ranks), []).append((num_bytes, time_ms))
    return [_fit(*key, grouped[key]) for key in sorted(grouped)]


def _fit(kind: str, num_ranks: int, samples: list[tuple[int, float]]) -> FittedCollective:
    design = np.array([(num_bytes, 1.0) for num_bytes, _ in samples])
    times = np.array([time for _, time in samples])
    fitted = fit_robustly(design, times)
    kept = ~fitted.is_outlier if not fitted.is_outlier.all() else np.ones(len(times), bool)
    errors = Errors.of((design @ fitted.coefficients)[kept], times[kept])
    per_byte, latency = (float(value) for value in fitted.coefficients)
    return FittedCollective(kind, num_ranks, latency, per_byte, len(samples), errors.median_abs_pct_error)
