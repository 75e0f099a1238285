"""A real agent beside a real service: what ranks get, and how it starts, fails and ends."""

import json
import re
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from served_agent import ServedAgent, agent_command, agents
from served_planner import ServedPlanner, servers, wait_until

from planner_client.client import PlannerClient
from planner_client.contract import IterationTimings, JobSpec, Plan, PlanOptions, ReplicaTiming, Scope, TokenRequest
from planner_client.contract.scalars import MAX_GPUS
from planner_client.errors import PlannerUnavailable, RequestRefused
from planner_service.access import TokenRegister
from planner_service.store import SqlStore
from worker_agent.daemon.client import AgentClient, socket_path
from worker_agent.daemon.wire import AgentCode, RankBatch, RankTimings

PAGE = (Path(__file__).parents[2] / "docs" / "agent.md").read_text()
LENGTHS = {0: [100, 200, 100], 1: [100, 300]}
Start = Callable[..., ServedAgent]


def give_token(database: Path, name: str, scope: Scope) -> str:
    store = SqlStore(str(database))
    token = TokenRegister(store.access).give(TokenRequest(name=name, scope=scope)).token
    store.close()
    return token


class Guarded:
    """A service that asks for tokens, one token for the agent and one for an administrator."""

    def __init__(self, served: ServedPlanner, folder: Path) -> None:
        self.url = served.url
        self.database = folder / "planner.sqlite3"
        self.token_file = folder / "token"
        self.token_file.write_text(give_token(self.database, "agent", "plan") + "\n")
        self.admin_token = give_token(self.database, "admin", "admin")
        self.client = PlannerClient(served.url, token=self.admin_token)

    def revoke(self, name: str) -> None:
        """Take a token back, at once."""
        headers = {"Authorization": f"Bearer {self.admin_token}"}
        assert httpx.delete(f"{self.url}/v1/tokens/{name}", headers=headers).status_code == 204


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("guarded")
    with servers(folder) as serve:
        guarded = Guarded(serve("--workers", "1", "--auth", "tokens"), folder)
        yield guarded
        guarded.client.close()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with agents(tmp_path) as start:
        yield start


def spec(job: str, node: str = "n0", **options: object) -> JobSpec:
    return JobSpec(
        name=job,
        profile="llama-7b-a100-40g",
        num_gpus=8,
        sources=[node],
        options=PlanOptions(deadline_ms=200),
        **options,  # type: ignore[arg-type]
    )


def batch(rank: int) -> RankBatch:
    return RankBatch(ranks=[0, 1], lengths=LENGTHS[rank])


def plan_bytes(agent: ServedAgent, job: str, rank: int) -> bytes:
    """Return the bytes of the plan as a rank gets them."""
    transport = httpx.HTTPTransport(uds=str(socket_path(agent.address)))
    with httpx.Client(transport=transport, base_url="http://localhost") as http:
        answer = http.get(f"/v1/jobs/{job}/iterations/0/ranks/{rank}/plan")
    assert answer.status_code == 200, answer.text
    return answer.content.partition(b',"plan":')[2]


def test_every_rank_gets_the_same_plan_and_its_part_and_its_times_reach_the_planner(
    guarded: Guarded, start: Start
) -> None:
    served = start(guarded.url, "n0", "--token-file", str(guarded.token_file))
    with AgentClient(served.address) as agent, ThreadPoolExecutor(2) as ranks:
        agent.register(spec("whole"))
        asking = [ranks.submit(agent.plan, "whole", 0, rank, batch(rank), timeout_s=30.0) for rank in (1, 0)]
        found = [asked.result() for asked in asking]
        assert plan_bytes(served, "whole", 0) == plan_bytes(served, "whole", 1)
        plan = guarded.client.iteration_plan("whole", 0)
        assert isinstance(plan, Plan)
        assert [told.plan for told in found] == [plan, plan]
        placed = [(told.part.rank, index) for told in found for share in told.part.shares for index in share.indices]
        assert sorted(placed) == [(rank, index) for rank, held in LENGTHS.items() for index in range(len(held))]
        for told in found:
            for share in told.part.shares:
                entries = plan.replicas[share.replica].micro_batches[share.micro_batch].sequences
                assert {LENGTHS[told.part.rank][index] for index in share.indices} <= {
                    entry.length for entry in entries
                }
        for rank in (0, 1):
            timing = ReplicaTiming(replica=rank, wall_ms=5.0 + rank, micro_batch_ms=[])
            agent.give_timings("whole", 0, rank, RankTimings(digest=plan.digest, ranks=[0, 1], replicas=[timing]))
        assert wait_until(lambda: bool(guarded.client.timings("whole", 0)), 20.0)
        replicas = [ReplicaTiming(replica=rank, wall_ms=5.0 + rank, micro_batch_ms=[]) for rank in (0, 1)]
        assert guarded.client.timings("whole", 0) == [
            IterationTimings(digest=plan.digest, iteration=0, replicas=replicas)
        ]
        [node] = [node for node in guarded.client.nodes() if node.name == "n0"]
        assert node.devices == agent.status().devices
        metrics = served_metrics(served)
    assert metrics["hydraulis_agent_planner_up"] == 1
    rows = dict(re.findall(r"^\| `(hydraulis_agent_[a-z_]+)` \| (\w+)", PAGE, re.MULTILINE))
    assert rows.keys() == {name for name in metrics if name.startswith("hydraulis_agent")}


def served_metrics(served: ServedAgent) -> dict[str, float]:
    transport = httpx.HTTPTransport(uds=str(socket_path(served.address)))
    with httpx.Client(transport=transport, base_url="http://localhost") as http:
        text = http.get("/metrics").text
    names = {name for name, kind in re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE)}
    values = {}
    for name in names:
        if not name.endswith("_created"):
            found = re.search(rf"^{name}(?:_count)?(?:{{.*}})? (\S+)$", text, re.MULTILINE)
            values[name] = float(found[1]) if found else 0.0
    return values


def test_a_rank_that_waits_gets_its_plan_from_the_agent_that_was_started_anew(guarded: Guarded, start: Start) -> None:
    options = ("--token-file", str(guarded.token_file))
    served = start(guarded.url, "n0", *options)
    with AgentClient(served.address) as agent, ThreadPoolExecutor(2) as ranks:
        agent.register(spec("anew", missing_sources="refuse"))
        first = ranks.submit(agent.plan, "anew", 0, 0, batch(0), timeout_s=40.0)
        assert wait_until(lambda: agent.status().num_iterations == 1)
        served.stop(signal.SIGKILL)
        served = start(guarded.url, "n0", *options)
        second = ranks.submit(agent.plan, "anew", 0, 1, batch(1), timeout_s=40.0)
        digest = first.result().plan.digest
        assert second.result().plan.digest == digest
        # Whatever it is asked of an iteration that was planned before it started, the planner's plan holds.
        served.stop(signal.SIGKILL)
        start(guarded.url, "n0", *options)
        agent.hand_in("anew", 0, 1, batch(1))
        assert agent.plan("anew", 0, 0, batch(0), timeout_s=40.0).plan.digest == digest
        other = RankBatch(ranks=[0, 1], lengths=[7])
        with pytest.raises(RequestRefused) as refused:
            agent.plan("anew", 0, 0, other, timeout_s=40.0)
        assert refused.value.problem.code == "batch-conflict"


def test_what_is_wrong_with_a_hand_in_or_a_job_is_told(guarded: Guarded, start: Start) -> None:
    served = start(guarded.url, "n0", "--token-file", str(guarded.token_file), "--job", "mine", "--rank-wait", "0.1")
    with AgentClient(served.address) as agent:

        def code_of(act: Callable[[], object]) -> str:
            with pytest.raises((RequestRefused, PlannerUnavailable)) as refused:
                act()
            assert isinstance(refused.value, RequestRefused | PlannerUnavailable)
            assert refused.value.problem is not None
            assert refused.value.problem.remedy
            return refused.value.problem.code

        assert code_of(lambda: agent.register(spec("theirs"))) == AgentCode.OTHER_JOB
        assert code_of(lambda: agent.register(spec("mine", node="n9"))) == "unknown-source"
        assert code_of(lambda: agent.iteration("mine", 0, 0)) == AgentCode.NOT_HANDED_IN
        assert code_of(lambda: agent.plan("mine", 0, 0, batch(0), timeout_s=10.0)) == "unknown-job"
        agent.register(spec("mine", missing_sources="refuse"))
        assert code_of(lambda: agent.plan("mine", 1, 0, batch(0), timeout_s=10.0)) == AgentCode.RANKS_MISSING
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(socket_path(served.address)))) as http:
        local = "http://localhost/v1/jobs/mine/iterations/0/ranks/0"
        assert http.put(local, content=b"{}").json()["code"] == "invalid-request"
        assert http.get(local + "/plan?wait_ms=x").status_code == 422
        assert http.get("http://localhost/v1/nothing").json()["code"] == "not-found"
        for address in (
            f"{'9' * 5000}/ranks/0",
            f"0/ranks/{'9' * 5000}",
            "-1/ranks/0",
            "0/ranks/x",
            f"{2**53 + 1}/ranks/0",
        ):
            told = http.put(f"http://localhost/v1/jobs/mine/iterations/{address}", json={"ranks": [0], "lengths": [1]})
            assert (told.status_code, told.json()["code"]) == (422, "invalid-request")
        assert http.get("http://localhost/v1/agent", headers={"Host": "["}).status_code == 403
        far = {"digest": "d", "ranks": [0], "replicas": [{"replica": MAX_GPUS, "wall_ms": 1, "micro_batch_ms": []}]}
        told = http.put(local + "/timings", json=far)
        assert (told.status_code, told.json()["code"]) == (422, "invalid-request")
        assert f"a plan has at most {MAX_GPUS}" in told.json()["detail"]
        assert "unexpected_error" not in served.log
        assert http.get("http://rebound.example/v1/agent").status_code == 403
        assert http.get("http://localhost/v1/agent", headers={"Origin": "http://page.example"}).status_code == 403


def test_a_job_that_was_deleted_and_registered_anew_begins_anew_at_the_agent(guarded: Guarded, start: Start) -> None:
    served = start(guarded.url, "n0", "--token-file", str(guarded.token_file))
    with AgentClient(served.address) as agent:
        agent.register(spec("begun-anew"))
        before = agent.plan("begun-anew", 0, 0, RankBatch(ranks=[0], lengths=[100, 200]), timeout_s=30.0)
        agent.register(spec("begun-anew"))
        assert agent.iteration("begun-anew", 0, 0).state == "planned"
        guarded.client.delete_job("begun-anew")
        agent.register(spec("begun-anew"))
        after = agent.plan("begun-anew", 0, 0, RankBatch(ranks=[0], lengths=[300, 400]), timeout_s=30.0)
    assert before.plan.digest != after.plan.digest
    assert guarded.client.iteration_plan("begun-anew", 0) == after.plan


def test_a_token_that_was_taken_back_is_read_again(guarded: Guarded, start: Start, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(give_token(guarded.database, "old", "plan"))
    served = start(guarded.url, "n0", "--token-file", str(file))
    file.write_text(give_token(guarded.database, "new", "plan"))
    guarded.revoke("old")
    with AgentClient(served.address) as agent:
        assert agent.register(spec("renewed")).name == "renewed"
        assert "token_renewed" in served.log
        guarded.revoke("new")
        with pytest.raises(RequestRefused) as refused:
            agent.register(spec("not-renewed"))
    assert refused.value.problem.code == "unauthenticated"


class ServiceManager:
    """Hears what an agent tells its service manager."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self.heard: list[bytes] = []
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        while not (self.heard and self.heard[-1].startswith(b"STOPPING")):
            self.heard.append(self._socket.recv(1000))
        self._socket.close()


def test_without_its_planner_it_starts_tells_ranks_soon_and_ends_well(start: Start, tmp_path: Path) -> None:
    manager = ServiceManager(tmp_path / "notify")
    env = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "200000"}
    served = start("http://127.0.0.1:9", "n0", env=env)
    with AgentClient(served.address) as agent:
        assert agent.status().is_planner_reached is False
        with pytest.raises(PlannerUnavailable, match="gives no answer"):
            agent.plan("j", 0, 0, RankBatch(ranks=[0], lengths=[5]), timeout_s=60.0)
        told = agent.iteration("j", 0, 0)
        assert told.waits_because
        assert served.stop() == 0
    assert wait_until(lambda: manager.heard[-1:] == [b"STOPPING=1"])
    first, *between = manager.heard[:-1]
    assert first.startswith(b"READY=1\nSTATUS=node n0 ")
    assert set(between) == {b"WATCHDOG=1"}
    assert not Path(served.address.removeprefix("unix:")).exists()
    assert all("event" in json.loads(line) for line in served.log.splitlines())


def ended(*options: str) -> tuple[int, str]:
    done = subprocess.run(agent_command(*options), capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stderr.splitlines()[-1]


def test_exit_codes_tell_why_it_does_not_run(guarded: Guarded, start: Start, tmp_path: Path) -> None:
    free = ("--port", "-1", "--socket", str(tmp_path / "free.sock"))
    code, told = ended("--node", "a b", *free)
    assert (code, told.startswith("hydraulis agent: --node is 'a b'")) == (2, True)
    code, told = ended("--planner", guarded.url, *free)
    assert (code, "needs a token" in told, "--token-file" in told) == (4, True, True)
    served = start("http://127.0.0.1:9", "n0")
    code, told = ended("--socket", served.address, "--port", "-1")
    assert (code, "listens on" in told) == (3, True)
