"""What can go wrong, by what the caller does about it.

::

    HydraulisError
    +-- RequestRefused        change the request: the problem document says how
    +-- PlannerUnavailable    fall back to a local plan, or try again later
    |   +-- DeadlineExceeded  the time given was too short for an answer
    +-- BadAnswer             what answers is not a planner that can be trusted; fall back, tell the operator
    +-- FallbackImpossible    no plan can be made without the planner, and why
    +-- NoPlanPossible        neither the planner nor a fallback gave a plan (`planner_client.steady`)
    +-- PlanMismatch          the plan is for another batch than the one held (`planner_client.sequences`)
    +-- GroupMismatch         the plan keeps other groups together than those held (`planner_client.groups`)
    +-- PlanInconsistent      the plan contradicts itself (`planner_client.run_order`)
"""

from planner_client.contract import Problem


class HydraulisError(Exception):
    """Base of everything the client raises on purpose."""


class RequestRefused(HydraulisError):  # noqa: N818 - named for what the caller does about it
    """The planner refused the request; sending it again unchanged gives the same answer.

    Attributes
    ----------
    problem
        The problem document, with its stable ``code``, ``remedy`` and explaining ``numbers``.
    """

    def __init__(self, problem: Problem) -> None:
        super().__init__(f"{problem.detail} [{problem.code}]" + (f"; {problem.remedy}" if problem.remedy else ""))
        self.problem = problem

    def __reduce__(self) -> tuple[type["RequestRefused"], tuple[Problem]]:
        """Keep the problem document when the error travels between processes."""
        return type(self), (self.problem,)


class PlannerUnavailable(HydraulisError):  # noqa: N818 - named for what the caller does about it
    """No answer could be had.

    Attributes
    ----------
    problem
        The last problem document, if the planner sent one.
    retry_after_s
        When the planner said to try again (seconds), if it did.
    """

    def __init__(self, message: str, problem: Problem | None = None, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.problem = problem
        self.retry_after_s = retry_after_s

    def __reduce__(self) -> tuple[type["PlannerUnavailable"], tuple[str, Problem | None, float | None]]:
        """Keep the attributes when the error travels between processes."""
        return type(self), (str(self), self.problem, self.retry_after_s)


class DeadlineExceeded(PlannerUnavailable):
    """The time the caller gave ran out, all tries together."""


class BadAnswer(HydraulisError):  # noqa: N818 - named for what the caller does about it
    """The answer is nonsense: not JSON, not of the contract, changed on its way, or for another request."""


class FallbackImpossible(HydraulisError):  # noqa: N818 - named for what the caller does about it
    """No plan can be had without the planner: a limit or an option is against it, or nothing is there to start from."""


class SequenceTooLong(FallbackImpossible):
    """A sequence is longer than any micro-batch may be, and over-long ones are not to be dropped.

    Attributes
    ----------
    limit
        The most tokens of a sequence.
    """

    def __init__(self, message: str, limit: int) -> None:
        super().__init__(message)
        self.limit = limit

    def __reduce__(self) -> tuple[type["SequenceTooLong"], tuple[str, int]]:
        """Keep the limit when the error travels between processes."""
        return type(self), (str(self), self.limit)


class NoPlanPossible(HydraulisError):  # noqa: N818 - named for what the caller does about it
    """There is no plan for an iteration: the planner gave none in time, and none could be made without it."""
