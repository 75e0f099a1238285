"""One place in the pool: a solver process, and the server's end of its pipe. All methods block; threads call them."""

import multiprocessing
import threading
import time
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

from planner_client.contract import FaultCode
from planner_service.core.faults import PlanningFault
from planner_service.pool.messages import (
    Broken,
    Finished,
    FoundPlan,
    FromServer,
    FromSolver,
    Incumbent,
    Job,
    Ready,
    Refused,
    Started,
    Stop,
)
from planner_service.pool.process import run_solver

CANCEL_POLL_S = 0.05
"""How often a waiting server thread looks whether its request was given up."""

START_ALLOWANCE_S = 10.0
"""Time a solver may take to pick up a job before it counts as dead."""

KILL_TIMEOUT_S = 5.0


class SolverDied(Exception):  # noqa: N818 - names what happened to the process
    """The process ended during a job; ``best`` is the best complete plan it had sent, if any."""

    def __init__(self, detail: str, best: FoundPlan | None = None) -> None:
        super().__init__(detail)
        self.best = best


class PlannerBroken(Exception):  # noqa: N818 - names what happened to the job
    """The planner raised an unexpected error; the message is its traceback."""


class JobCancelled(Exception):  # noqa: N818 - an outcome, not an error
    """Nobody waits for this job any more."""


class Slot:
    """A solver process that can be replaced.

    Parameters
    ----------
    solve_name
        ``package.module:function`` of the planner.
    grace_ms
        Time a solver gets to stop before it is killed.
    start_timeout_s
        Time a new process may take until it is ready.
    max_bytes
        Memory that a process may allocate.
    """

    def __init__(self, solve_name: str, *, grace_ms: float, start_timeout_s: float, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._solve_name = solve_name
        self._grace_s = grace_ms / 1000.0
        self._start_timeout_s = start_timeout_s
        self._process: BaseProcess | None = None
        self._connection: Connection[FromServer, FromSolver] | None = None
        self._unfinished: int | None = None

    @property
    def pid(self) -> int | None:
        """Process id of the solver, or None where there is none."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Start a process and wait until it has imported the planner.

        Raises
        ------
        SolverDied
            If it ends or is not ready in time.
        """
        context = multiprocessing.get_context("spawn")
        mine, its = context.Pipe(duplex=True)
        process = context.Process(
            target=run_solver, args=(its, self._solve_name, self._max_bytes), name="hydraulis-solver", daemon=True
        )
        process.start()
        its.close()
        self._process, self._connection, self._unfinished = process, mine, None
        try:
            is_ready = mine.poll(self._start_timeout_s) and isinstance(mine.recv(), Ready)
        except (EOFError, OSError) as error:
            self.kill()
            raise SolverDied(
                f"solver process {process.pid} ended while it started (exit code {process.exitcode})"
            ) from error
        if not is_ready:
            self.kill()
            raise SolverDied(f"solver process {process.pid} was not ready within {self._start_timeout_s:g} s")

    def run(self, job: Job, cancelled: threading.Event) -> FoundPlan:
        """Run a job to its end or its deadline, whichever comes first.

        Returns
        -------
        FoundPlan
            The plan, or at the deadline the best complete one known by then.

        Raises
        ------
        PlanningFault
            If the planner refuses the request, or has no plan by the deadline.
        SolverDied
            If the process ends.
        PlannerBroken
            If the planner raises anything else.
        JobCancelled
            If ``cancelled`` is set.
        """
        best: FoundPlan | None = None
        started = False
        try:
            connection = self._open_connection()
            self._unfinished = job.number
            connection.send(job)
            ends_at = time.monotonic() + START_ALLOWANCE_S
            while (left_s := ends_at - time.monotonic()) > 0:
                if cancelled.is_set():
                    raise JobCancelled
                if not connection.poll(min(left_s, CANCEL_POLL_S)):
                    continue
                message = connection.recv()
                if isinstance(message, Started):
                    started = True
                    ends_at = time.monotonic() + job.deadline_ms / 1000.0
                elif isinstance(message, Incumbent):
                    best = _better(best, message.plan)
                else:
                    return self._ended(message)
        except (EOFError, OSError) as error:
            raise SolverDied(f"solver process {self.pid} ended during a job", best) from error
        if not started:
            self.kill()
            raise SolverDied(f"solver process {self.pid} did not start on a job within {START_ALLOWANCE_S:g} s")
        if best is None:
            raise PlanningFault(
                FaultCode.DEADLINE_EXCEEDED,
                f"no plan was found within the deadline of {job.deadline_ms:g} ms",
                "raise options.deadline_ms or send a smaller batch",
                deadline_ms=job.deadline_ms,
            )
        return best

    def settle(self) -> bool:
        """Make the process ready for the next job, if it can be.

        Returns
        -------
        bool
            True if it waits for a job; False if it had to be killed or is gone, so that `start` is due.
        """
        process, connection = self._process, self._connection
        if process is None or connection is None or not process.is_alive():
            self.kill()
            return False
        if self._unfinished is None:
            return True
        try:
            connection.send(Stop(self._unfinished))
            ends_at = time.monotonic() + self._grace_s
            while (left_s := ends_at - time.monotonic()) > 0:
                if connection.poll(left_s) and isinstance(connection.recv(), Finished | Refused | Broken):
                    self._unfinished = None
                    return True
        except (EOFError, OSError):
            self.kill()
            return False
        self.kill()
        return False

    def kill(self) -> None:
        """End the process at once; does nothing where there is none."""
        if self._process is not None:
            self._process.kill()
            self._process.join(KILL_TIMEOUT_S)
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def interrupt(self) -> None:
        """Kill the process and leave the rest to the thread that waits for it, which sees its pipe close."""
        if self._process is not None:
            self._process.kill()

    def _open_connection(self) -> "Connection[FromServer, FromSolver]":
        if self._connection is None:
            raise BrokenPipeError("the solver process is gone")
        return self._connection

    def _ended(self, message: FromSolver) -> FoundPlan:
        self._unfinished = None
        if isinstance(message, Finished):
            return message.plan
        if isinstance(message, Refused):
            raise PlanningFault(message.code, message.detail, message.remedy, **message.numbers)
        raise PlannerBroken(message.traceback if isinstance(message, Broken) else f"unexpected {message!r}")


def _better(best: FoundPlan | None, plan: FoundPlan) -> FoundPlan:
    return plan if best is None or plan.makespan_ms <= best.makespan_ms else best
