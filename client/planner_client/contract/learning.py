"""Learning: what a job's measured times say of its profiles, and the versions that its plans are made with."""

from typing import Literal

from pydantic import Field

from planner_client.contract.plan import PassedOver
from planner_client.contract.request import DevicePool, StrategyGroups
from planner_client.contract.scalars import (
    Degree,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveInt,
    Returned,
)

LearningMode = Literal["off", "observe", "on"]
"""Whether a job learns from measured times, and whether its plans are made with what was learned."""


class Coefficients(Returned):
    """Cost of one pipeline stage, as in a profile.

    Attributes
    ----------
    a_ms_per_token2, b_ms_per_token, c_ms
        Time for each square of a sequence's tokens, for each token, and of a micro-batch whatever it holds.
    """

    a_ms_per_token2: NonNegativeFloat
    b_ms_per_token: NonNegativeFloat
    c_ms: NonNegativeFloat


class LearnedCost(Returned):
    """What one layout costs on one type of GPU: as registered, before and after.

    Attributes
    ----------
    device
        The type of GPU.
    tp, cp, pp
        Degrees of the layout: tensor, context and pipeline parallel.
    num_samples
        Measured micro-batches that count so far.
    registered, before, after
        As in the profile, as plans were made before, and as learned.
    registered_error_pct, learned_error_pct
        Median absolute error of predicted times of micro-batches in percent, by the profile and as learned; null
        without samples.
    """

    device: str
    tp: Degree
    cp: Degree
    pp: Degree
    num_samples: NonNegativeInt
    registered: Coefficients
    before: Coefficients
    after: Coefficients
    registered_error_pct: NonNegativeFloat | None
    learned_error_pct: NonNegativeFloat | None


class SlowRanks(Returned):
    """Ranks that take longer than others of their type.

    Attributes
    ----------
    device
        Their type of GPU.
    factor
        How many times as long.
    ranks
        Which ones, ascending.
    """

    device: str
    factor: NonNegativeFloat
    ranks: list[NonNegativeInt]


class LearnedVersionSummary(Returned):
    """One version in a list.

    Attributes
    ----------
    version
        Versions of a job are numbered from 1; what was registered is none.
    created_at
        When it was made (seconds since 1970, UTC).
    iteration
        Iteration whose times brought it; null if it was asked for.
    reasons
        Why it was made, in sentences for people.
    """

    version: PositiveInt
    created_at: NonNegativeFloat = 0.0
    iteration: NonNegativeInt | None
    reasons: list[str]


class LearnedVersion(LearnedVersionSummary):
    """What plans are made with from some iteration on; never changed.

    Attributes
    ----------
    job
        The job's name.
    costs
        Every layout on every type of GPU.
    slow
        Ranks that are slower than others.
    pools
        The cluster as plans are asked for; slow ranks are types of their own.
    strategies
        Candidates, written for these pools; empty if all strategies are searched.
    left_out
        Candidates that cannot be written for these pools.
    """

    job: str
    costs: list[LearnedCost]
    slow: list[SlowRanks] = Field(default_factory=list)
    pools: list[DevicePool]
    strategies: list[StrategyGroups] = Field(default_factory=list)
    left_out: list[PassedOver] = Field(default_factory=list)


class LearnedVersionList(Returned):
    """Some versions of a job.

    Attributes
    ----------
    versions
        Descending, from the newest on.
    next_after
        Give it as ``after`` to go on; null if these were the last.
    """

    versions: list[LearnedVersionSummary]
    next_after: NonNegativeInt | None


class DeviceDrift(Returned):
    """How far one type of GPU is from its profile.

    Attributes
    ----------
    device
        The type of GPU.
    factor
        How many times as long as its profile says micro-batches take; 1 is as it says.
    is_drifting
        Whether it has been far off for long: measure it again.
    """

    device: str
    factor: NonNegativeFloat
    is_drifting: bool


class Learning(Returned):
    """What is learned of a job by now, whether plans are made with it or not.

    Attributes
    ----------
    job
        The job's name.
    mode
        ``off``, ``observe`` or ``on``, as the job was registered.
    version
        Newest version, which plans are made with if the mode is ``on``; null if there is none.
    num_iterations
        Iterations that measured times were taken in of.
    devices
        How far each type of GPU is from its profile.
    costs
        What each layout costs; ``before`` is the newest version's, ``after`` what is believed now.
    slow
        Ranks that are slower than others now.
    """

    job: str
    mode: LearningMode
    version: PositiveInt | None
    num_iterations: NonNegativeInt
    devices: list[DeviceDrift]
    costs: list[LearnedCost]
    slow: list[SlowRanks]
