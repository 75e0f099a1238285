"""What an agent answers where it cannot do what a rank asks: problem documents (RFC 9457), as the planner's are."""

from http import HTTPStatus

from planner_client.contract import FaultCode, Problem
from planner_client.errors import HydraulisError, PlannerUnavailable, RequestRefused
from worker_agent.daemon.wire import AgentCode


class AgentProblem(Exception):  # noqa: N818 - names what ranks are told, not every one of them an error
    """Answer a rank with a problem document.

    Attributes
    ----------
    problem
        The document.
    """

    def __init__(self, status: int, code: FaultCode | AgentCode, detail: str, remedy: str) -> None:
        super().__init__(detail)
        self.problem = problem_document(status, code, detail, remedy)


def problem_document(status: int, code: str, detail: str, remedy: str) -> Problem:
    """Make a problem document."""
    return Problem(
        type=f"urn:hydraulis:problem:{code}",
        title=HTTPStatus(status).phrase,
        status=status,
        detail=detail,
        code=str(code),
        remedy=remedy,
    )


def problem_of(error: Exception) -> Problem:
    """Return what ranks are told of an error: the planner's own document where it sent one."""
    if isinstance(error, AgentProblem | RequestRefused):
        return error.problem
    if isinstance(error, PlannerUnavailable) and error.problem is not None:
        return error.problem
    if isinstance(error, PlannerUnavailable):
        return planner_away(str(error))
    if isinstance(error, HydraulisError):
        return problem_document(
            502, FaultCode.PLAN_MISMATCH, str(error), "see whether a planner of this version runs at --planner"
        )
    return problem_document(
        500, FaultCode.INTERNAL, "the agent met an unexpected error", "find it in the agent's log, and report it"
    )


def planner_away(why: str) -> Problem:
    """Return what ranks are told while the planner is not reached."""
    return problem_document(
        503,
        AgentCode.PLANNER_AWAY,
        f"the planner gives no answer: {why}",
        "go on by a plan of your own; the agent goes on trying",
    )
