"""What an agent decides, apart from doing it."""

import inspect
import re
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from planner_client.contract import FaultCode, NodeDevice, Problem
from planner_client.errors import (
    BadAnswer,
    DeadlineExceeded,
    HydraulisError,
    PlannerUnavailable,
    RequestRefused,
)
from planner_client.sequences import PlanMismatch
from worker_agent.commands.agent import BAD_SETTINGS, agent
from worker_agent.daemon.client import AgentClient, socket_path
from worker_agent.daemon.decisions import Step, handed_in, is_final, next_step, ranks_missing
from worker_agent.daemon.devices import cpu_device, gpu_devices, node_devices
from worker_agent.daemon.node_batch import NodeBatch
from worker_agent.daemon.problems import AgentProblem, problem_document, problem_of
from worker_agent.daemon.settings import AgentSettings
from worker_agent.daemon.sockets import (
    AddressTaken,
    AddressUnusable,
    identity_of,
    listen_on_port,
    listen_on_socket,
    remove_socket,
)
from worker_agent.daemon.systemd import notify, watchdog_s
from worker_agent.daemon.wire import RankBatch
from worker_agent.trainer.planning import AGENT_VARIABLE, agent_of, planner_of

SOCKET = Path("/run/a.sock")


def batch(*lengths: int, ranks: tuple[int, ...] = (0, 1)) -> RankBatch:
    return RankBatch(ranks=list(ranks), lengths=list(lengths))


def code_of(known: NodeBatch | None, rank: int, given: RankBatch, *, is_sent: bool) -> str:
    with pytest.raises(AgentProblem) as refused:
        handed_in(known, rank, given, is_sent=is_sent)
    return refused.value.problem.code


@pytest.mark.parametrize("is_sent", [False, True])
def test_the_same_again_changes_nothing(is_sent: bool) -> None:  # noqa: FBT001 - a case
    known = handed_in(None, 1, batch(5, 3), is_sent=False)
    assert handed_in(known, 1, batch(5, 3, ranks=(1, 0)), is_sent=is_sent) is known


def test_before_the_report_the_newest_hand_in_counts() -> None:
    known = handed_in(None, 0, batch(5), is_sent=False)
    replaced = handed_in(known, 0, batch(6), is_sent=False)
    assert replaced.lengths.tolist() == [6]
    assert replaced.missing == [1]
    anew = handed_in(replaced, 2, batch(7, ranks=(2, 3)), is_sent=False)
    assert (anew.ranks, anew.missing, anew.lengths.tolist()) == ((2, 3), [3], [7])


def test_after_the_report_nothing_else_is_taken() -> None:
    known = handed_in(None, 0, batch(5), is_sent=False)
    assert code_of(known, 0, batch(6), is_sent=True) == FaultCode.BATCH_CONFLICT
    assert code_of(known, 1, batch(5), is_sent=True) == FaultCode.ITERATION_CLOSED
    assert code_of(known, 2, batch(5, ranks=(2,)), is_sent=True) == FaultCode.BATCH_CONFLICT
    assert code_of(None, 2, batch(5), is_sent=False) == FaultCode.INVALID_REQUEST


def test_the_report_goes_out_when_all_are_there_or_the_wait_is_over_and_the_job_leaves_out() -> None:
    some = handed_in(None, 0, batch(5), is_sent=False)
    whole = handed_in(some, 1, batch(), is_sent=False)
    for missing in ("leave-out", "refuse"):
        assert next_step(whole, 0.0, 5.0, missing) is Step.REPORT
        assert next_step(some, 4.9, 5.0, missing) is Step.WAIT
    assert next_step(some, 5.0, 5.0, "leave-out") is Step.REPORT
    assert next_step(some, 5.0, 5.0, "refuse") is Step.REFUSE
    assert "ranks [1]" in ranks_missing(some, 5.0).problem.detail


def problem(code: str) -> Problem:
    return problem_document(503, code, "why", "what to do")


@pytest.mark.parametrize(
    ("error", "is_over", "status"),
    [
        (RequestRefused(problem_document(422, FaultCode.SEQUENCE_TOO_LONG, "why", "cut it")), True, 422),
        (PlannerUnavailable("no route"), False, 503),
        (DeadlineExceeded("late"), False, 503),
        (PlannerUnavailable("busy", problem(FaultCode.OVERLOADED)), False, 503),
        (PlannerUnavailable("late", problem(FaultCode.PLAN_TOO_LATE)), True, 503),
        (BadAnswer("garbage"), False, 502),
        (PlanMismatch("n", 5, 1, 2), True, 502),
    ],
)
def test_what_may_pass_is_asked_again_and_what_will_not_is_told(
    error: HydraulisError,
    is_over: bool,  # noqa: FBT001 - a case
    status: int,
) -> None:
    assert is_final(error) == is_over
    assert problem_of(error).status == status


def test_devices_are_counted_by_type() -> None:
    found = [("H200", 139), ("A800", 80), ("H200", 139)]
    assert gpu_devices(found) == [
        NodeDevice(name="A800", count=1, memory_bytes=80),
        NodeDevice(name="H200", count=2, memory_bytes=139),
    ]
    assert cpu_device("processor: 0\nmodel name\t: Fast One \n", 4, 1000) == NodeDevice(
        name="CPU Fast One", count=4, memory_bytes=250
    )
    assert cpu_device("", 1, 7).name == "CPU"
    assert sum(device.count for device in node_devices()) >= 1


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"node": "-a"}, "--node is '-a'"),
        ({"job": "a b"}, "--job is 'a b'"),
        ({"socket_path": None}, "nothing to listen on"),
        ({"heartbeat_s": 1e300}, "--heartbeat is 1e\\+300; give at most 86400 s"),
        ({"rank_wait_s": 0.0}, "--rank-wait is 0.0"),
        ({"planner_url": "ftp://x"}, "not an http URL"),
        ({"token_file": Path("/nowhere/token")}, "cannot be read"),
    ],
)
def test_settings_that_cannot_be_used_are_refused_by_name(changes: dict[str, object], told: str) -> None:
    given: dict[str, object] = {"node": "n", "socket_path": SOCKET}
    with pytest.raises(ValueError, match=told):
        AgentSettings(**{**given, **changes})  # type: ignore[arg-type]


def test_a_token_file_is_read_and_its_content_not_repeated(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("hyd_abc\n")
    settings = AgentSettings(node="n", socket_path=SOCKET, token_file=file)
    assert settings.token() == "hyd_abc"
    file.write_text("hyd_abc secret")
    with pytest.raises(ValueError, match="cannot be used") as refused:
        settings.token()
    assert "secret" not in str(refused.value)


def test_a_socket_is_for_user_and_group_and_replaces_one_left_behind(tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    with listen_on_socket(path):
        assert path.stat().st_mode & 0o777 == 0o660
        with pytest.raises(AddressTaken, match="listens on"):
            listen_on_socket(path)
    with listen_on_socket(path):
        assert path.is_socket()
    file = tmp_path / "file"
    file.touch()
    for unusable in (file, tmp_path / "none" / "a.sock", tmp_path / ("a" * 120)):
        with pytest.raises(AddressUnusable, match="--socket"):
            listen_on_socket(unusable)
    with listen_on_port(0) as listener, pytest.raises(AddressTaken, match="--port"):
        listen_on_port(listener.getsockname()[1])


def test_of_agents_that_start_at_once_one_takes_the_socket_left_behind(tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    for _ in range(20):
        path.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX) as killed:
            killed.bind(str(path))
        together = threading.Barrier(3)

        def start(_: int, together: threading.Barrier = together) -> socket.socket | None:
            together.wait()
            try:
                return listen_on_socket(path)
            except AddressTaken:
                return None

        with ThreadPoolExecutor(3) as starting:
            listeners = [found for found in starting.map(start, range(3)) if found is not None]
        for listener in listeners:
            listener.close()
        assert len(listeners) == 1


def test_an_agent_removes_no_socket_but_its_own(tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    with listen_on_socket(path):
        own = identity_of(path)
        path.rename(tmp_path / "moved.sock")
        with listen_on_socket(path):
            remove_socket(path, own)
            assert path.is_socket()
            remove_socket(path, identity_of(path))
            assert not path.exists()
        remove_socket(path, own)


def test_a_service_manager_is_told_and_its_absence_is_no_trouble(tmp_path: Path) -> None:
    assert not notify("READY=1", {})
    assert not notify("READY=1", {"NOTIFY_SOCKET": str(tmp_path / "none")})
    for address, name in ((str(tmp_path / "n"), str(tmp_path / "n")), ("\0hydraulis-test", "@hydraulis-test")):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.bind(address)
            assert notify("READY=1", {"NOTIFY_SOCKET": name})
            assert manager.recv(100) == b"READY=1"
    assert watchdog_s({"WATCHDOG_USEC": "30000000"}) == 15.0
    assert watchdog_s({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}) is None
    assert watchdog_s({"WATCHDOG_USEC": "x"}) is watchdog_s({}) is None


def test_an_agents_address_is_a_socket_or_a_url() -> None:
    assert socket_path("unix:/run/a.sock") == socket_path("/run/a.sock") == SOCKET
    assert socket_path("http://127.0.0.1:8471") is None
    for wrong in ("unix:a.sock", "ftp://a"):
        with pytest.raises(ValueError, match="address"):
            AgentClient(wrong)


def test_a_run_goes_by_the_agent_of_its_node_unless_it_is_told_of_something_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert agent_of(None, None, None) is None
    monkeypatch.setenv(AGENT_VARIABLE, "/run/a.sock")
    assert agent_of(None, None, None) == "/run/a.sock"
    assert agent_of("unix:/b", None, None) == "unix:/b"
    assert agent_of(None, "http://planner:8000", None) is None
    with pytest.raises(ValueError, match="planner http://p and agent /a both make plans"):
        planner_of("http://p", None, agent="/a", profile="p", collective_timeout_s=60.0)
    with pytest.raises(ValueError, match="agent /a needs to know what the model costs"):
        planner_of(None, None, agent="/a", collective_timeout_s=60.0)


def test_ranks_can_talk_to_an_agent_without_torch_or_a_server() -> None:
    code = "import sys, worker_agent.daemon.client; print({'torch', 'starlette', 'uvicorn'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "set()"


def test_the_unit_for_systemd_sets_what_the_command_reads() -> None:
    unit = (Path(__file__).parents[2] / "deploy" / "systemd" / "hydraulis-agent.service").read_text()
    named = set(re.findall(r"\bHYDRAULIS_\w+", unit))
    read = {name for option in inspect.signature(agent).parameters.values() for name in _variables(option)}
    assert named
    assert named <= read
    page = (Path(__file__).parents[2] / "docs" / "agent.md").read_text()
    assert read == set(re.findall(r"^\| `--[\w-]+` \| `(HYDRAULIS_\w+)`", page, re.MULTILINE))
    assert "Type=notify" in unit
    assert f"RestartPreventExitStatus={BAD_SETTINGS}\n" in unit


def _variables(option: inspect.Parameter) -> list[str]:
    found = option.annotation.__metadata__[0].envvar
    return [found] if isinstance(found, str) else list(found or ())
