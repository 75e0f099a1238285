"""What one iteration of a run was like, in figures."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal, Self

from planner_client.contract import Plan

PlanOrigin = Literal["service", "fallback", "own"]
"""Where a plan came from: the planner service, rank 0 without it in time, or the run's own ``plans=``."""


@dataclass(frozen=True)
class IterationMetrics:
    """One iteration, the same on every rank but for the times of planning, which only rank 0 knows.

    Attributes
    ----------
    iteration
        Counted from 0.
    epoch
        Epoch of the data, from 0.
    loss
        Mean token loss (nats) of the global batch.
    learning_rate
        With which the optimizer stepped.
    grad_norm
        Global L2 norm of the gradients before clipping; None if nothing was clipped.
    num_sequences, num_tokens
        Trained on in this iteration, on all ranks.
    num_dropped
        Sequences that the plan left out as over-long.
    wall_ms
        The whole iteration: planning waited for, exchange, computation, step.
    compute_ms
        Forward and backward on the slowest rank.
    balance
        The slowest rank's ``compute_ms`` over the mean of all ranks; 1 is perfect.
    tokens_per_s
        ``num_tokens`` over ``wall_ms``.
    strategy
        The plan's strategy.
    plan_digest
        The plan's digest.
    solved_by
        What found the plan.
    plan_origin
        Where the plan came from: ``service``, ``fallback`` (made without the service, which gave none in time), or
        ``own`` (``plans=``).
    predicted_ms
        The plan's simulated time of the iteration, synchronisation included.
    gap
        The plan's proven gap; None without a bound.
    planning_ms
        The planner's own time.
    fetch_ms
        From asking for the plan to having it.
    waited_ms
        How long training waited for the plan; the rest of ``fetch_ms`` was hidden behind iterations before.
    evaluation_loss
        Mean token loss (nats) on the evaluation data after this iteration, where it was evaluated.
    """

    iteration: int
    epoch: int
    loss: float
    learning_rate: float
    grad_norm: float | None
    num_sequences: int
    num_tokens: int
    num_dropped: int
    wall_ms: float
    compute_ms: float
    balance: float
    tokens_per_s: float
    strategy: str
    plan_digest: str
    solved_by: str
    plan_origin: PlanOrigin
    predicted_ms: float
    gap: float | None
    planning_ms: float
    fetch_ms: float
    waited_ms: float
    evaluation_loss: float | None = None

    @classmethod
    def of_plan(  # noqa: PLR0913 - one argument for each thing that the plan does not know
        cls,
        plan: Plan,
        *,
        iteration: int,
        epoch: int,
        loss: float,
        learning_rate: float,
        grad_norm: float | None,
        wall_ms: float,
        compute_ms: Sequence[float],
        plan_origin: PlanOrigin,
        fetch_ms: float,
        waited_ms: float,
    ) -> Self:
        """Return the metrics of an iteration that ran a plan; ``compute_ms`` are those of all ranks."""
        slowest_ms, mean_ms = max(compute_ms), sum(compute_ms) / len(compute_ms)
        return cls(
            iteration=iteration,
            epoch=epoch,
            loss=loss,
            learning_rate=learning_rate,
            grad_norm=grad_norm,
            num_sequences=plan.num_sequences,
            num_tokens=plan.num_tokens,
            num_dropped=sum(entry.count for entry in plan.dropped),
            wall_ms=wall_ms,
            compute_ms=slowest_ms,
            balance=slowest_ms / mean_ms if mean_ms else 1.0,
            tokens_per_s=1000 * plan.num_tokens / wall_ms,
            strategy=plan.strategy,
            plan_digest=plan.digest,
            solved_by=plan.solved_by,
            plan_origin=plan_origin,
            predicted_ms=plan.simulated_ms + plan.sync_ms,
            gap=plan.gap,
            planning_ms=plan.planning_ms,
            fetch_ms=fetch_ms,
            waited_ms=waited_ms,
        )

    def as_json_line(self) -> str:
        """Return the metrics as one JSON object on one line."""
        return json.dumps(asdict(self), allow_nan=False)

    def as_text(self, num_iterations: int | None) -> str:
        """Return the metrics as one line for people."""
        of = "" if num_iterations is None else f"/{num_iterations}"
        parts = [
            f"iteration {self.iteration + 1}{of}",
            f"loss {self.loss:.4f}",
            f"{self.num_tokens} tokens in {self.wall_ms / 1000:.2f} s",
            f"rate {self.learning_rate:.2e}",
        ]
        if self.grad_norm is not None:
            parts.append(f"gradient norm {self.grad_norm:.3g}")
        maker = " made without the planner" if self.plan_origin == "fallback" else ""
        parts += [f"slowest/mean {self.balance:.2f}", f"plan {self.strategy}{maker}, waited {self.waited_ms:.0f} ms"]
        if self.evaluation_loss is not None:
            parts.append(f"evaluation loss {self.evaluation_loss:.4f}")
        return "  ".join(parts)
