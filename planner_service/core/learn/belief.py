"""The cost that samples speak for, with what was registered where they say nothing: robust, non-negative, exact.

Beside the samples stand a few micro-batches that were never run, timed as the registered cost says, times the samples'
median ratio to it. They weigh next to nothing where samples tell a coefficient, and decide where samples do not.
"""

from collections.abc import Sequence

import numpy as np

from planner_service.core.fit_robust import fit_robustly
from planner_service.core.learn.measured import Cost, Sample
from planner_service.core.problem import Floats

ANCHOR_WEIGHT = 0.03
"""Weight of one micro-batch that was never run: as if samples scatter by 5 % and registered costs by 30 %."""

ANCHOR_SPREAD = (1 / 16, 1 / 4, 1.0, 2.0)
"""Lengths of single sequences as anchors, over the samples' typical length."""


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
    return Cost(*(float(value) for value in fit_robustly(rows, targets, weights).coefficients))


def _anchors(design: Floats) -> Floats:
    typical = float(np.median(design[:, 0] / design[:, 1]))
    lengths = np.array(ANCHOR_SPREAD) * max(typical, 1.0)
    return np.column_stack([lengths**2, lengths, np.ones(len(lengths))])
