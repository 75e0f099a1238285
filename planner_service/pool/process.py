"""What runs inside a solver process: import the planner once, then one job after another."""

import os
import resource
import signal
import threading
import time
import traceback
from collections.abc import Callable
from importlib import import_module
from multiprocessing import parent_process
from multiprocessing.connection import Connection, wait

import orjson

from planner_client.contract import FaultCode, Plan
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
)

SolveFunction = Callable[..., Plan]

STOP_POLL_S = 0.01
"""How often a running job looks whether it was told to stop."""


def run_solver(connection: "Connection[FromSolver, FromServer]", solve_name: str, max_bytes: int) -> None:
    """Serve jobs until the server closes the connection or ends.

    Parameters
    ----------
    connection
        The solver's end of the pipe.
    solve_name
        ``package.module:function`` of the planner, called as ``planner_service.translate.plan_request`` is.
    max_bytes
        Memory that this process may allocate.
    """
    # One request must not take the memory of the whole machine, and with it every other request.
    _, most_bytes = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (max_bytes, most_bytes))
    # Ctrl-C and `kill` reach the whole process group; only the server decides when a solver ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _end_with_the_server()
    solve = named_function(solve_name)
    connection.send(Ready())
    while True:
        try:
            message = connection.recv()
        except EOFError:
            return
        if isinstance(message, Job):
            try:
                connection.send(_outcome(connection, solve, message))
            except BrokenPipeError:
                return


def named_function(name: str) -> SolveFunction:
    """Import ``package.module:function``."""
    module, _, function = name.partition(":")
    found: SolveFunction = getattr(import_module(module), function)
    return found


def inner_deadline_ms(deadline_ms: float) -> float:
    """Time the search itself may take (ms), so that its answer is written down before the server stops waiting."""
    return deadline_ms - min(50.0, 0.1 * deadline_ms)


def _outcome(connection: "Connection[FromSolver, FromServer]", solve: SolveFunction, job: Job) -> FromSolver:
    started = time.perf_counter()
    sending = threading.Lock()
    asked_to_stop = _StopRequests(connection)
    budget_ms = inner_deadline_ms(job.deadline_ms)

    def remaining_ms() -> float:
        if asked_to_stop():
            return 0.0
        return max(0.0, budget_ms - (time.perf_counter() - started) * 1000.0)

    def on_incumbent(plan: Plan) -> None:
        found = FoundPlan.of(plan.model_copy(update={"cut_by_wall_clock": True}))
        with sending:
            connection.send(Incumbent(job.number, found))

    connection.send(Started(job.number))
    try:
        plan = solve(job.request, job.profiles, remaining_ms=remaining_ms, on_incumbent=on_incumbent)
        return Finished(job.number, FoundPlan.of(plan))
    except PlanningFault as fault:
        return Refused(job.number, str(fault.code), fault.detail, fault.remedy, _plain(fault.numbers))
    except MemoryError:
        return _out_of_memory(job)
    except Exception:  # noqa: BLE001 - whatever the planner raises is logged by the server and answered as `internal`
        return Broken(job.number, traceback.format_exc())


def _out_of_memory(job: Job) -> Refused:
    limit_bytes, _ = resource.getrlimit(resource.RLIMIT_DATA)
    return Refused(
        job.number,
        FaultCode.INVALID_REQUEST,
        f"planning this batch takes more than the {limit_bytes} bytes of memory that a solver may use",
        "send fewer sequences in one request, or run the service with a higher HYDRAULIS_MAX_SOLVER_BYTES",
        {"limit_bytes": limit_bytes},
    )


class _StopRequests:
    """Tell whether the server has said stop, without a system call each time it is asked."""

    def __init__(self, connection: "Connection[FromSolver, FromServer]") -> None:
        self._connection = connection
        self._asked = False
        self._next_look = 0.0
        self._lock = threading.Lock()

    def __call__(self) -> bool:
        now = time.monotonic()
        if self._asked or now < self._next_look:
            return self._asked
        with self._lock:
            self._next_look = now + STOP_POLL_S
            # While a job runs the server sends nothing but a stop, so that anything to read is one.
            self._asked = self._connection.poll(0)
        return self._asked


def _end_with_the_server() -> None:
    """End this process when the server's process is gone, also while a job runs."""
    server = parent_process()
    if server is None:
        return

    def watch() -> None:
        wait([server.sentinel])
        os._exit(1)

    threading.Thread(target=watch, name="end-with-the-server", daemon=True).start()


def _plain(numbers: dict[str, object]) -> dict[str, object]:
    """Reduce a fault's values to what any JSON reader knows."""
    plain: dict[str, object] = orjson.loads(
        orjson.dumps(numbers, default=str, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS)
    )
    return plain
