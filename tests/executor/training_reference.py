"""Training in one process that shares no code with the executor: dense attention, clipping, AdamW by their formulas."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from reference import reference_step
from torch import Tensor

from worker_agent.executor.model import Decoder, DecoderConfig

RATE, BETAS, EPSILON, DECAY = 3e-3, (0.9, 0.95), 1e-8, 0.1
TOLERANCE = 1e-9
CLIP_EPSILON = 1e-6
"""What torch's clipping adds to the norm before it divides by it."""


@dataclass
class Course:
    """What training went through: losses and gradient norms by iteration, weights in the end."""

    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    weights: dict[str, Tensor] = field(default_factory=dict)


def train_by_reference(
    config: DecoderConfig, seed: int, batches: Sequence[Sequence[Tensor]], max_norm: float
) -> Course:
    """Train on batches of sequences; an iteration without a target changes nothing."""
    model = Decoder(config, seed=seed, dtype=torch.float64)
    weights = dict(model.named_parameters())
    moments = {name: (torch.zeros_like(p.data), torch.zeros_like(p.data)) for name, p in weights.items()}
    course, steps = Course(), 0
    for batch in batches:
        if not any(len(sequence) > 1 for sequence in batch):
            course.losses.append(0.0)
            course.norms.append(0.0)
            continue
        loss, flat, _ = reference_step(model, batch)
        norm = float(flat.norm())
        scale = min(1.0, max_norm / (norm + CLIP_EPSILON))
        steps += 1
        for name, parameter in weights.items():
            _adamw(parameter, parameter.grad * scale, moments[name], steps)
        course.losses.append(loss)
        course.norms.append(norm)
    course.weights = {name: parameter.detach().clone() for name, parameter in weights.items()}
    return course


@torch.no_grad()
def _adamw(parameter: Tensor, gradient: Tensor, moments: tuple[Tensor, Tensor], step: int) -> None:
    """Step as Loshchilov and Hutter (arXiv 1711.05101, algorithm 2) write it; norms' weights do not decay."""
    first, second = moments
    first.copy_(BETAS[0] * first + (1 - BETAS[0]) * gradient)
    second.copy_(BETAS[1] * second + (1 - BETAS[1]) * gradient**2)
    if parameter.dim() > 1:
        parameter.mul_(1 - RATE * DECAY)
    unbiased = second / (1 - BETAS[1] ** step)
    parameter.sub_(RATE * first / (1 - BETAS[0] ** step) / (unbiased.sqrt() + EPSILON))


def differences(found: Course, expected: Course) -> list[str]:
    """Say where two courses differ by more than the tolerance, relative to the largest of its kind."""
    said = []
    for name, one, other in (("loss", found.losses, expected.losses), ("norm", found.norms, expected.norms)):
        scale = max(1.0, *map(abs, other))
        said += [
            f"{name} of iteration {i}: {a} for {b}"
            for i, (a, b) in enumerate(zip(one, other, strict=True))
            if abs(a - b) > TOLERANCE * scale
        ]
    for name, weights in expected.weights.items():
        apart = float((found.weights[name] - weights).abs().max())
        if apart > TOLERANCE:
            said.append(f"weights {name} differ by {apart}")
    assert found.weights.keys() == expected.weights.keys()
    assert all(torch.isfinite(weights).all() for weights in found.weights.values())
    return said
