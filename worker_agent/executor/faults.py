"""What can go wrong while ranks run a plan together. Every rank of a group raises the same fault."""

from collections.abc import Mapping


class ExecutionFault(Exception):  # noqa: N818 - a fault of the iteration; its branches say what it was
    """An iteration that was not run. The model is as it was before it, unless `RankLost` says otherwise."""


class LayoutRefused(ExecutionFault, ValueError):  # noqa: N818 - named after what happened, like its siblings
    """A plan whose strategy or placement this executor does not run."""


class PlanDisagreement(ExecutionFault):
    """Ranks came with different plans, or with different terms of running them.

    Attributes
    ----------
    digests
        The plan's digest by rank.
    """

    def __init__(self, message: str, digests: tuple[str, ...]) -> None:
        super().__init__(message)
        self.digests = digests


class PlanningFailed(ExecutionFault):
    """The rank that decides has no plan to share.

    Attributes
    ----------
    kind
        Type of what it met instead.
    detail
        Its message.
    """

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(f"no plan for this iteration: {kind}: {detail}")
        self.kind = kind
        self.detail = detail


class IterationFailed(ExecutionFault):
    """One rank or more failed in its own part of an iteration.

    Attributes
    ----------
    messages
        What went wrong, by rank.
    """

    def __init__(self, message: str, messages: Mapping[int, str]) -> None:
        super().__init__(message)
        self.messages = dict(messages)


class PartFailed(ExecutionFault):
    """A part of an iteration that this rank could not do; it says which, and what was raised.

    The other ranks hear of it as `IterationFailed`.
    """


class MicroBatchFailed(PartFailed):
    """A micro-batch could not be computed on this rank; it says which, how large it is and what was expected of it."""


class RunnerClosed(ExecutionFault, RuntimeError):  # noqa: N818 - named after what happened, like its siblings
    """The runner was closed; it runs nothing any more."""


class NotFinite(ExecutionFault):
    """The loss or a gradient is NaN or infinite; the optimizer did not step."""


class RankLost(ExecutionFault):
    """A collective broke off: a rank died or did not arrive within the group's timeout. The group is unusable."""


def text_of(fault: Exception) -> str:
    """Return what a fault says of itself, or that it cannot."""
    try:
        return str(fault)
    except Exception as unspeakable:  # noqa: BLE001 - whatever its own text raises, the other ranks must hear of it
        return f"(its text cannot be had: {type(unspeakable).__name__})"
