"""Costs of layouts that were not measured, scaled from those that were on the same device.

All measured samples together are fitted to one model of a stage's time for a micro-batch with sums ``S2`` of squared
lengths and ``S1`` of lengths::

    t = (alpha S2 + beta S1 + gamma (tp - 1) S1) / (tp cp pp) + kappa / pp

* A stage has ``1 / pp`` of the layers; tensor parallelism divides heads and matrices by ``tp`` (Shoeybi et al.,
  arXiv 1909.08053), context parallelism the tokens by ``cp`` (Liu et al., arXiv 2310.01889).
* Each layer sums its activations over the tensor-parallel ranks, in both directions; a ring sends
  ``2 (tp - 1) / tp`` times their bytes from each rank (Patarasuk and Yuan, 2009), which is the term of ``gamma``.
* ``kappa`` is what a stage's layers take whatever the micro-batch holds (launching kernels), which no degree but
  ``pp`` divides.

In the coefficients published with Hydraulis (arXiv 2412.07894), ``a tp pp`` and ``c pp`` are nearly the same for all
layouts of a model, and ``b tp pp`` grows linearly with ``tp`` inside a node. Beyond a node it grows faster.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner_service.core.fit import Errors, Samples
from planner_service.core.fit_robust import fit_robustly
from planner_service.core.problem import Floats, Layout

MOST_SCALING_MEDIAN_PCT = 15.0
"""Measured layouts that are further off by the scaling of the others speak against it."""

MOST_FOLDS = 16
"""Measured layouts are held out one by one, or in so many groups if there are more."""

MOST_NAMED = 4
"""Layouts that a warning names, the most alike first."""


@dataclass(frozen=True)
class Measured:
    """A layout, its samples without those that are outliers, and its limit (tokens; None by a memory model)."""

    layout: Layout
    samples: Samples
    max_tokens: int | None


@dataclass(frozen=True)
class Scaling:
    """The model's coefficients, and how it fits what was measured.

    Attributes
    ----------
    alpha, beta, gamma, kappa
        ms per token squared, ms per token, ms per token and further tensor-parallel rank, ms.
    errors
        Of the times it gives the measured samples.
    held_out
        Errors for each layout's samples by the model of other layouts; None for a single one.
    """

    alpha: float
    beta: float
    gamma: float
    kappa: float
    errors: Errors
    held_out: Errors | None

    def cost_of(self, layout: Layout) -> tuple[float, float, float]:
        """Return ``a`` (ms per token squared), ``b`` (ms per token) and ``c`` (ms) of a layout."""
        share = 1.0 / layout.num_ranks
        return self.alpha * share, (self.beta + self.gamma * (layout.tp - 1)) * share, self.kappa / layout.pp


def fit_scaling(measured: Sequence[Measured]) -> Scaling:
    """Fit the model to all measured layouts of one device, each of which counts the same however many samples it has.

    Parameters
    ----------
    measured
        At least one layout, with at least three samples each.
    """
    coefficients = _fit(measured)
    held_out = None
    if len(measured) > 1:
        num_folds = min(len(measured), MOST_FOLDS)
        others = [
            _fit([one for index, one in enumerate(measured) if index % num_folds != fold]) for fold in range(num_folds)
        ]
        predicted = [_design(one) @ others[index % num_folds] for index, one in enumerate(measured)]
        held_out = _errors(measured, predicted)
    alpha, beta, gamma, kappa = (float(value) for value in coefficients)
    errors = _errors(measured, [_design(one) @ coefficients for one in measured])
    return Scaling(alpha, beta, gamma, kappa, errors, held_out)


def _errors(measured: Sequence[Measured], predicted: Sequence[Floats]) -> Errors:
    return Errors.of(np.concatenate(predicted), np.concatenate([one.samples.times for one in measured]))


def _design(one: Measured) -> Floats:
    share = 1.0 / one.layout.num_ranks
    squares, tokens = one.samples.squares * share, one.samples.tokens * share
    return np.column_stack([squares, tokens, tokens * (one.layout.tp - 1), np.full(len(tokens), 1.0 / one.layout.pp)])


def _fit(measured: Sequence[Measured]) -> Floats:
    design = np.vstack([_design(one) for one in measured])
    times = np.concatenate([one.samples.times for one in measured])
    weights = np.concatenate([np.full(len(one.samples.times), 1.0 / len(one.samples.times)) for one in measured])
    if len({one.layout.tp for one in measured}) > 1:
        return fit_robustly(design, times, weights).coefficients
    # One degree does not tell what another adds: gamma is left at nothing.
    found = fit_robustly(design[:, [0, 1, 3]], times, weights).coefficients
    return np.array([found[0], found[1], 0.0, found[2]])


def limit_of(layout: Layout, measured: Sequence[Measured]) -> int | None:
    """Return a limit (tokens) that is safe for a layout: the highest of measured ones that spread no further.

    With more tensor, context or pipeline parallelism every GPU holds a smaller part of the states and of each token's
    activations, so a micro-batch that fitted before fits all the more. None if no measured layout is like that.
    """
    limits = [
        one.max_tokens
        for one in measured
        if one.max_tokens is not None
        and (one.layout.tp <= layout.tp and one.layout.cp <= layout.cp and one.layout.pp <= layout.pp)
    ]
    return max(limits, default=None)


def warnings_of_estimate(
    layout: Layout, measured: Sequence[Measured], scaling: Scaling, gpus_per_node: int
) -> list[str]:
    """Say that a layout is estimated, from what, and what speaks against the estimate."""
    nearest = sorted(measured, key=lambda one: _distance(one.layout, layout))
    names = ", ".join(str(one.layout) for one in nearest[:MOST_NAMED])
    if len(nearest) > MOST_NAMED:
        names += f" and {len(nearest) - MOST_NAMED} more"
    sentences = [f"not measured: scaled from {names}; measure {layout} before you rely on it"]
    tensor = {one.layout.tp for one in measured}
    if layout.tp > 1 and len(tensor) == 1 and layout.tp not in tensor:
        sentences.append(
            f"all measured layouts have tp={tensor.pop()}, so what tensor-parallel ranks of tp={layout.tp} send one "
            "another is not in the estimate; measure a second tp"
        )
    elif layout.tp > max(tensor):
        sentences.append(f"tp={layout.tp} is beyond the measured tp={max(tensor)}")
    if layout.tp > gpus_per_node >= max(tensor):
        sentences.append(
            f"tp={layout.tp} spans nodes of {gpus_per_node} GPUs, which no measured layout does; it will be slower"
        )
    if layout.cp > max(one.layout.cp for one in measured):
        sentences.append(
            f"cp={layout.cp} is beyond what was measured; what context-parallel ranks send is not in the estimate"
        )
    if scaling.held_out is not None and scaling.held_out.median_abs_pct_error > MOST_SCALING_MEDIAN_PCT:
        sentences.append(
            f"measured layouts are off by {scaling.held_out.median_abs_pct_error:.0f}% in the median when each is "
            f"scaled from the others, over {MOST_SCALING_MEDIAN_PCT:.0f}%"
        )
    return sentences


def _distance(one: Layout, other: Layout) -> tuple[float, Layout]:
    """Doublings between two layouts' degrees; the layout itself settles ties."""
    pairs = ((one.tp, other.tp), (one.cp, other.cp), (one.pp, other.pp))
    return sum(abs(math.log2(mine / theirs)) for mine, theirs in pairs), one
