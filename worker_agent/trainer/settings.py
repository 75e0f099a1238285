"""What a run is asked to do: frozen values, refused where they cannot be done, before any process waits for another."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from pydantic import TypeAdapter, ValidationError

from planner_client.address import bearer, checked_address
from planner_client.contract import LearningMode, PlanOptions, Profile, ReplicaGroup, parse_strategy
from planner_client.contract.scalars import JobName
from worker_agent.daemon.client import checked_agent

if TYPE_CHECKING:
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler

    from worker_agent.trainer.metrics import IterationMetrics

Decay = Literal["constant", "linear", "cosine"]
Resume = Literal["newest", "never", "required"]

_JOB_NAME = TypeAdapter(JobName)

_SEEDS_END = 2**63
"""What generators of torch and of NumPy both take."""


def _refuse_below(limit: float, **values: float | None) -> None:
    for name, value in values.items():
        if value is not None and not value >= limit:
            raise ValueError(f"{name} is {value}; give at least {limit:g}")


def refuse_no_duration(**values_s: float) -> None:
    """Refuse what is no length of time.

    Raises
    ------
    ValueError
        If a value is not positive and finite; it names the argument.
    """
    for name, value_s in values_s.items():
        if not (value_s > 0 and math.isfinite(value_s)):
            raise ValueError(f"{name} is {value_s}; give a positive number of seconds")


def refuse_bad_seed(seed: int) -> None:
    """Refuse what cannot seed weights and the order of data.

    Raises
    ------
    ValueError
        If it is not a whole number from 0 to 2**63 - 1.
    """
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < _SEEDS_END:
        raise ValueError(f"seed is {seed!r}; give a whole number from 0 to {_SEEDS_END - 1}")


def _refuse_bad_learning(learning: str, *, has_job: bool) -> None:
    if learning not in get_args(LearningMode):
        raise ValueError(f"learning is {learning!r}; give one of {', '.join(get_args(LearningMode))}")
    if learning == "on" and not has_job:
        raise ValueError("learning is 'on', but only jobs learn; give job=, the name to register the run as")


def _refuse_bad_job(name: str) -> None:
    try:
        _JOB_NAME.validate_python(name)
    except ValidationError:
        raise ValueError(
            f"job is {name!r}; give at most 128 letters, digits, '.', '_' or '-', beginning with a letter or digit"
        ) from None


@dataclass(frozen=True)
class OptimizerSettings:
    """AdamW (Loshchilov and Hutter, arXiv 1711.05101) on the optimizer shards.

    Attributes
    ----------
    learning_rate
        The highest learning rate of the run; the schedule scales it.
    betas
        Decay of the first and second moment.
    eps
        Added to the root of the second moment.
    weight_decay
        Of matrices; norm weights are not decayed.
    max_norm
        Gradients whose global L2 norm is larger are scaled down to it; None leaves them as they are.
    make
        Builds another optimizer of parameter groups, in place of AdamW; it must treat every element by itself, as Adam
        does, for it sees the shards. Of the values above only ``max_norm`` is used then.

    Raises
    ------
    ValueError
        If a value is out of its range.
    """

    learning_rate: float = 3e-4
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    weight_decay: float = 0.1
    max_norm: float | None = 1.0
    make: Callable[[list[dict[str, Any]]], "Optimizer"] | None = None

    def __post_init__(self) -> None:
        _refuse_below(0.0, learning_rate=self.learning_rate, eps=self.eps, weight_decay=self.weight_decay)
        if any(not 0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas are {self.betas}; both must be from 0 to below 1")
        if self.max_norm is not None and not self.max_norm > 0:
            raise ValueError(f"max_norm is {self.max_norm}; give a positive number, or None to leave gradients alone")


@dataclass(frozen=True)
class ScheduleSettings:
    """How the learning rate rises and falls (see `worker_agent.trainer.learning_rate`).

    Attributes
    ----------
    warmup_iterations
        Iterations of the linear rise from 0.
    decay
        What follows: ``constant``, ``linear`` or ``cosine`` down to ``final_share``.
    decay_iterations
        Iteration at which the fall ends; the run's ``num_iterations`` if not given.
    final_share
        Share of the highest learning rate that is left in the end.
    make
        Builds another scheduler of the optimizer, in place of all this; it steps once an iteration.

    Raises
    ------
    ValueError
        If a value is out of its range.
    """

    warmup_iterations: int = 0
    decay: Decay = "constant"
    decay_iterations: int | None = None
    final_share: float = 0.0
    make: Callable[["Optimizer"], "LRScheduler"] | None = None

    def __post_init__(self) -> None:
        _refuse_below(0, warmup_iterations=self.warmup_iterations)
        _refuse_below(1, decay_iterations=self.decay_iterations)
        if self.decay not in {"constant", "linear", "cosine"}:
            raise ValueError(f"decay is {self.decay!r}; give constant, linear or cosine")
        if not 0 <= self.final_share <= 1:
            raise ValueError(f"final_share is {self.final_share}; give a share from 0 to 1")


@dataclass(frozen=True)
class BatchLimit:
    """Where one global batch ends: with the last sequence that keeps within the limits.

    Attributes
    ----------
    tokens
        Most tokens of a global batch. A longer sequence is a batch by itself.
    sequences
        Most sequences of a global batch.

    Raises
    ------
    ValueError
        If neither is given, or one is below 1.
    """

    tokens: int | None = None
    sequences: int | None = None

    def __post_init__(self) -> None:
        if self.tokens is None and self.sequences is None:
            raise ValueError(
                "nothing says how large a global batch is; give tokens_per_iteration, sequences_per_iteration or both"
            )
        _refuse_below(1, tokens_per_iteration=self.tokens, sequences_per_iteration=self.sequences)


@dataclass(frozen=True)
class CheckpointSettings:
    """Where, how often and how many checkpoints are kept, and whether a run begins from one.

    Attributes
    ----------
    directory
        Folder that every rank reaches under this path.
    every_iterations
        A checkpoint is written after each so many iterations, and at the end of the run.
    keep
        How many are kept; older ones are deleted.
    resume
        ``newest``: from the newest whole checkpoint, or from the beginning where there is none. ``required``: there
        must be one. ``never``: from the beginning, into a folder without checkpoints.

    Raises
    ------
    ValueError
        If a value is out of its range.
    """

    directory: Path | str
    every_iterations: int = 500
    keep: int = 3
    resume: Resume = "newest"

    def __post_init__(self) -> None:
        _refuse_below(1, every_iterations=self.every_iterations, keep=self.keep)
        if self.resume not in {"newest", "never", "required"}:
            raise ValueError(f"resume is {self.resume!r}; give newest, never or required")

    @property
    def path(self) -> Path:
        """The folder."""
        return Path(self.directory)


@dataclass(frozen=True)
class EvaluationSettings:
    """What is evaluated while training.

    Attributes
    ----------
    data
        Sequences, as for training.
    every_iterations
        How often.

    Raises
    ------
    ValueError
        If a value is out of its range.
    """

    data: Any
    every_iterations: int = 500

    def __post_init__(self) -> None:
        _refuse_below(1, every_iterations=self.every_iterations)
        if isinstance(self.data, Iterator):
            raise ValueError(  # noqa: TRY004 - the type is fine, for a single evaluation
                f"the evaluation data is a {type(self.data).__name__}, which can be read only once; give a list or "
                "a Dataset"
            )


@dataclass(frozen=True)
class RunLength:
    """When a run ends: with the first of what is given.

    Attributes
    ----------
    iterations
        After so many iterations, those before a resumption included.
    epochs
        After reading the data so many times.

    Raises
    ------
    ValueError
        If neither is given, or one is below 1.
    """

    iterations: int | None = None
    epochs: int | None = None

    def __post_init__(self) -> None:
        if self.iterations is None and self.epochs is None:
            raise ValueError("nothing says when the run ends; give num_iterations, num_epochs or both")
        _refuse_below(1, num_iterations=self.iterations, num_epochs=self.epochs)

    def is_over(self, num_iterations: int, epoch: int) -> bool:
        """Tell whether a run ends that has done so many iterations and whose next batch is of this epoch."""
        return (self.iterations is not None and num_iterations >= self.iterations) or (
            self.epochs is not None and epoch >= self.epochs
        )


@dataclass(frozen=True)
class ReportSettings:
    """Who hears of each iteration; only rank 0 reports.

    Attributes
    ----------
    json_lines
        File to which each iteration adds one JSON object.
    progress
        Whether to write lines, and a bar on terminals, to standard error.
    on_iteration
        Called with the metrics of each iteration.
    """

    json_lines: Path | str | None = None
    progress: bool = True
    on_iteration: Callable[["IterationMetrics"], None] | None = None


@dataclass(frozen=True)
class PlannerSettings:
    """Whom plans are asked from, and what for.

    Attributes
    ----------
    url
        Where the planner listens, such as ``http://planner:8000``.
    profile
        A profile the planner has, by name, or one sent along.
    strategies
        Candidates, as ``(2,1)x1,(1,1)x2`` or as lists of replica groups; without any, all are searched.
    options
        Constraints of the plan and of the search for it.
    timeout_s
        Most time that training waits for one plan; by default the options' deadline and 15 s.
    token
        Sent to the planner; by default what ``HYDRAULIS_TOKEN`` holds on the rank that asks.
    ca_file
        Certificates (PEM) to trust instead of the public ones; by default what ``HYDRAULIS_CA_FILE`` names there.
    job
        Name of the job that the run is registered as; without one, each plan is asked for by itself.
    window
        Iterations whose plans are asked for ahead of time.
    by_agent
        Whether the address is that of the node's agent, ``unix:/run/hydraulis/agent.sock`` or ``http://127.0.0.1:8471``.
    learning
        What the planner does with measured times of the job: ``off``, ``observe`` or ``on``.

    Raises
    ------
    ValueError
        If the address, a strategy, the token or the job's name cannot be read, a number is out of range, or the
        profile is missing.
    """

    url: str
    profile: Profile | str | None
    strategies: tuple[str | tuple[ReplicaGroup, ...], ...] = ()
    options: PlanOptions = field(default_factory=PlanOptions)
    timeout_s: float | None = None
    token: str | None = field(default=None, repr=False)
    ca_file: Path | str | None = None
    job: str | None = None
    window: int = 2
    by_agent: bool = False
    learning: LearningMode = "observe"

    def __post_init__(self) -> None:
        _refuse_bad_learning(self.learning, has_job=self.job is not None or self.by_agent)
        if self.by_agent:
            checked_agent(self.url)
        else:
            checked_address(self.url)
        bearer(self.token)
        _refuse_below(1, plan_window=self.window)
        if self.profile is None:
            who = "agent" if self.by_agent else "planner"
            raise ValueError(
                f"{who} {self.url} needs to know what the model costs; give profile, the name of one it has "
                "(`hydraulis profile` measures one) or a Profile"
            )
        if self.timeout_s is not None:
            refuse_no_duration(plan_timeout_s=self.timeout_s)
        if self.job is not None:
            _refuse_bad_job(self.job)
        self.candidates()

    def candidates(self) -> list[list[ReplicaGroup]]:
        """Return the candidate strategies as the planner takes them.

        Raises
        ------
        ValueError
            If one cannot be read.
        """
        return [
            parse_strategy(strategy) if isinstance(strategy, str) else list(strategy) for strategy in self.strategies
        ]
