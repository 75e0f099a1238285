"""The cost that samples speak for, with what was registered where they say nothing: robust, non-negative, exact.

Errors are relative to the predicted time, so that short micro-batches weigh as much as long ones. Samples far from the
others lose their weight (Tukey's biweight, iterated from the median). Beside the samples stand a few micro-batches that
were never run, timed as the registered cost says, times the samples' median ratio to it. They weigh next to nothing
where samples tell a coefficient, and decide where samples do not.
"""

from collections.abc import Sequence
from itertools import combinations

import numpy as np

from planner_service.core.learn.measured import Cost, Sample
from planner_service.core.problem import Floats

ANCHOR_WEIGHT = 0.03
"""Weight of one micro-batch that was never run: as if samples scatter by 5 % and registered costs by 30 %."""

ANCHOR_SPREAD = (1 / 16, 1 / 4, 1.0, 2.0)
"""Lengths of single sequences as anchors, over the samples' typical length."""

TUKEY = 4.685
"""Biweight constant of 95 % efficiency under normal noise (Holland and Welsch, 1977)."""

LEAST_SCATTER = 0.01
ROUNDS = 20


def believed_cost(samples: Sequence[Sample], registered: Cost) -> Cost:
    """Fit a cost to samples.

    Parameters
    ----------
    samples
        Micro-batches of one kind; at least one.
    registered
        What is believed without samples, up to a common factor.
    """
    table = np.array(samples, float)
    design = np.column_stack([table[:, 0], table[:, 1], np.ones(len(table))])
    times = table[:, 2]
    anchors = _anchors(design)
    known = np.array([registered.a, registered.b, registered.c])
    if not (design @ known > 0).all():
        known = np.maximum(known, 1e-3 * times.mean() / design.mean(axis=0))
    common = float(np.median(times / (design @ known)))
    rows = np.vstack([design, anchors])
    targets = np.concatenate([times, common * (anchors @ known)])
    weights = np.concatenate([np.ones(len(times)), np.full(len(anchors), ANCHOR_WEIGHT)])
    coefficients = common * known
    for _ in range(ROUNDS):
        predicted = np.maximum(rows @ coefficients, 1e-12)
        errors = targets / predicted - 1.0
        found = _non_negative(rows / predicted[:, None], targets / predicted, weights * _biweight(errors, len(times)))
        is_settled = np.allclose(found, coefficients, rtol=1e-6, atol=0)
        coefficients = found
        if is_settled:
            break
    return Cost(*(float(value) for value in coefficients))


def _anchors(design: Floats) -> Floats:
    typical = float(np.median(design[:, 0] / design[:, 1]))
    lengths = np.array(ANCHOR_SPREAD) * max(typical, 1.0)
    return np.column_stack([lengths**2, lengths, np.ones(len(lengths))])


def _biweight(errors: Floats, num_samples: int) -> Floats:
    """Weigh samples by how far they are from what most say; anchors keep theirs."""
    own = errors[:num_samples]
    scatter = max(LEAST_SCATTER, 1.4826 * float(np.median(np.abs(own - np.median(own)))))
    shares = np.clip(np.abs(own) / (TUKEY * scatter), 0.0, 1.0)
    weights = (1.0 - shares**2) ** 2
    if not weights.any():
        weights = np.ones(num_samples)
    return np.concatenate([weights, np.ones(len(errors) - num_samples)])


def _non_negative(rows: Floats, targets: Floats, weights: Floats) -> Floats:
    """Solve weighted least squares over every set of coefficients held at zero; with three that is exact and cheap."""
    scale = np.maximum(np.sqrt((weights[:, None] * rows**2).sum(axis=0)), 1e-300)
    scaled = rows / scale
    gram = scaled.T @ (weights[:, None] * scaled)
    moment = scaled.T @ (weights * targets)
    best, best_value = np.zeros(3), 0.0
    for size in (1, 2, 3):
        for free in map(list, combinations(range(3), size)):
            part = np.linalg.lstsq(gram[np.ix_(free, free)], moment[free], rcond=1e-12)[0]
            value = float(part @ gram[np.ix_(free, free)] @ part - 2 * moment[free] @ part)
            if (part >= 0).all() and value < best_value - 1e-12:
                best, best_value = np.zeros(3), value
                best[free] = part
    solved: Floats = best / scale
    return solved
