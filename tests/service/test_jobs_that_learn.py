"""Learning over HTTP: from reported times to versions, to plans that name them; restarts, duplicates, two services."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from served_planner import ServedPlanner, servers

Serve = Callable[..., ServedPlanner]
JSON = dict[str, Any]

LAYOUTS = [
    {"tp": tp, "pp": 1, "a_ms_per_token2": 1e-6, "b_ms_per_token": 0.04 / tp, "c_ms": 2.0, "max_tokens": 2048 * tp}
    for tp in (1, 2, 4)
]
PROFILE = {
    "name": "m",
    "source": "a test",
    "model": {"name": "m", "num_layers": 2, "hidden_size": 64, "vocab_size": 256},
    "device": {"name": "gpu", "memory_bytes": 2**33, "gpus_per_node": 4},
    "layouts": LAYOUTS,
}
STRATEGIES = [[{"tp": 1, "pp": 1, "num_replicas": 4}]]


class Trainer:
    """A job over raw HTTP whose machines are simulated."""

    def __init__(self, url: str, job: str, learning: str, **changes: object) -> None:
        self.http = httpx.Client(base_url=url, timeout=60.0)
        self.job = job
        self.spec = {
            "name": job,
            "profile": PROFILE,
            "num_gpus": 4,
            "strategies": STRATEGIES,
            "sources": ["a"],
            "options": {"deadline_ms": 200, "target_gap": 0.05},
            "learning": learning,
            **changes,
        }
        answer = self.http.post("/v1/jobs", json=self.spec)
        assert answer.status_code in {200, 201}, answer.text

    def plan(self, iteration: int, *more: int) -> JSON:
        lengths = [128 * (1 + (iteration + 3 * number) % 11) for number in range(24)] + list(more)
        address = f"/v1/jobs/{self.job}/iterations/{iteration}"
        self.http.put(f"{address}/histograms", json={"sources": {"a": {"lengths": lengths}}}).raise_for_status()
        answer = self.http.get(f"{address}/plan", params={"wait_ms": 30_000})
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def times(self, plan: JSON, slow: dict[int, float]) -> JSON:
        """Return what ranks measure: as the profile says, times what they are slower."""
        replicas = []
        for number, replica in enumerate(plan["replicas"]):
            factor = max(slow.get(rank, 1.0) for rank in replica["ranks"])
            times = [self._time_ms(replica, entry) * factor for entry in replica["micro_batches"]]
            replicas.append({"replica": number, "wall_ms": sum(times), "micro_batch_ms": times})
        return {"digest": plan["digest"], "iteration": plan["iteration"], "replicas": replicas}

    def _time_ms(self, replica: JSON, micro_batch: JSON) -> float:
        layout = next(own for own in LAYOUTS if own["tp"] == replica["tp"])
        sums = [(entry["length"], entry["count"]) for entry in micro_batch["sequences"]]
        work = sum(n * (layout["a_ms_per_token2"] * s * s + layout["b_ms_per_token"] * s) for s, n in sums)
        return float(layout["c_ms"] + work)

    def train(self, iteration: int, slow: dict[int, float] | None = None) -> JSON:
        plan = self.plan(iteration)
        self.report(plan, slow or {})
        return plan

    def report(self, plan: JSON, slow: dict[int, float]) -> None:
        address = f"/v1/jobs/{self.job}/iterations/{plan['iteration']}/timings"
        answer = self.http.post(address, json=self.times(plan, slow))
        assert answer.status_code == 204, answer.text

    def get(self, path: str = "") -> JSON:
        answer = self.http.get(f"/v1/jobs/{self.job}/learning{path}")
        assert answer.status_code == 200, answer.text
        return dict(answer.json())


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedPlanner]:
    with servers(tmp_path_factory.mktemp("learning")) as start:
        yield start("--workers", "1")


def devices(plan: JSON) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for replica in plan["replicas"]:
        found.setdefault(replica["device"], []).extend(replica["ranks"])
    return found


def test_a_slow_rank_becomes_a_type_of_its_own_and_plans_name_the_version(shared: ServedPlanner) -> None:
    trainer = Trainer(shared.url, "slow-rank", "on")
    first = trainer.train(0)
    assert first["profile_version"] is None
    for iteration in range(1, 8):
        plan = trainer.train(iteration, {2: 2.0} if iteration >= 4 else {})
    plan = trainer.train(8, {2: 2.0})
    assert plan["profile"] == "m"
    assert plan["profile_version"] == 1
    assert devices(plan) == {"gpu": [0, 1, 3], "gpu x2 slower": [2]}
    tokens = {own["ranks"][0]: sum(entry["num_tokens"] for entry in own["micro_batches"]) for own in plan["replicas"]}
    assert tokens[2] < 0.75 * min(tokens[rank] for rank in (0, 1, 3))
    version = trainer.get("/versions/1")
    assert version["slow"] == [{"device": "gpu", "factor": 2.0, "ranks": [2]}]
    assert version["reasons"] == ["ranks 2 take 2 times as long as others of their type"]
    assert [own["version"] for own in trainer.get("/versions")["versions"]] == [1]
    told = trainer.get()
    assert (told["mode"], told["version"], told["num_iterations"]) == ("on", 1, 9)
    # The plan of an iteration stays what it was.
    assert trainer.plan(0) == first
    for iteration in range(9, 13):
        trainer.train(iteration)
    assert devices(trainer.train(13)) == {"gpu": [0, 1, 2, 3]}


def test_a_job_that_observes_makes_versions_and_plans_as_one_that_does_not_learn(shared: ServedPlanner) -> None:
    observing, off = Trainer(shared.url, "observing", "observe"), Trainer(shared.url, "off", "off")
    for iteration in range(8):
        plans = [trainer.train(iteration, {1: 3.0}) for trainer in (observing, off)]
        assert plans[0]["digest"] == plans[1]["digest"]
        assert plans[0]["profile_version"] is None
    assert observing.get()["slow"] == [{"device": "gpu", "factor": 3.0, "ranks": [1]}]
    assert observing.get()["version"] == 1
    assert (off.get()["version"], off.get()["num_iterations"]) == (None, 0)
    assert off.http.post("/v1/jobs/off/learning/reset").json()["code"] == "invalid-request"


def test_the_same_times_again_change_nothing(shared: ServedPlanner) -> None:
    once, often = Trainer(shared.url, "once", "on"), Trainer(shared.url, "often", "on")
    for iteration in range(7):
        for trainer, repeats in ((once, 1), (often, 3)):
            plan = trainer.plan(iteration)
            for _ in range(repeats):
                trainer.report(plan, {0: 1.7})
    assert {**once.get(), "job": ""} == {**often.get(), "job": ""}
    assert once.get()["num_iterations"] == 7
    first, second = once.get("/versions/1"), often.get("/versions/1")
    assert {**first, "job": "", "created_at": 0} == {**second, "job": "", "created_at": 0}


def test_what_was_learned_is_forgotten_on_request_as_a_version_of_its_own(shared: ServedPlanner) -> None:
    trainer = Trainer(shared.url, "reset", "on")
    for iteration in range(6):
        trainer.train(iteration, {3: 2.0})
    assert "gpu x2 slower" in devices(trainer.plan(6))
    answer = trainer.http.post("/v1/jobs/reset/learning/reset")
    assert answer.status_code == 200, answer.text
    assert answer.json()["version"] == 2
    assert answer.json() == trainer.get("/versions/2")
    plan = trainer.plan(7)
    assert plan["profile_version"] == 2
    assert devices(plan) == {"gpu": [0, 1, 2, 3]}
    assert (trainer.get()["num_iterations"], trainer.get()["slow"]) == (0, [])


@pytest.mark.parametrize("factor", [1e-300, 1e-9, 1e6, 1e9])
def test_a_job_is_planned_and_read_whatever_times_it_is_told(shared: ServedPlanner, factor: float) -> None:
    trainer = Trainer(shared.url, f"absurd-{factor:g}".replace("+", ""), "on")
    for iteration in range(7):
        trainer.train(iteration, dict.fromkeys(range(4), factor))
    assert "version" in trainer.get()
    for own in trainer.get("/versions")["versions"]:
        assert trainer.get(f"/versions/{own['version']}")["pools"]
    for iteration in range(7, 16):
        trainer.train(iteration)
    assert trainer.get()["costs"][0]["after"]["c_ms"] == pytest.approx(LAYOUTS[0]["c_ms"], rel=0.05)


@pytest.mark.parametrize("name", ["x" * 1000, "<script>alert(1)</script>", "\u202e'\"\\ \x7f"])
def test_slow_ranks_of_a_type_are_set_apart_whatever_its_name(shared: ServedPlanner, name: str) -> None:
    profile = {**PROFILE, "device": {"name": name, "memory_bytes": 2**33, "gpus_per_node": 4}}
    trainer = Trainer(shared.url, f"named-{len(name)}", "on", profile=profile)
    for iteration in range(6):
        trainer.train(iteration, {2: 2.0})
    assert devices(trainer.plan(6)) == {name: [0, 1, 3], f"{name[:960]} x2 slower": [2]}


def test_a_version_that_cannot_be_read_does_not_keep_a_job_from_being_planned(serve: Serve, tmp_path: Path) -> None:
    path = tmp_path / "shared.sqlite3"
    served = serve("--workers", "1", database=path)
    trainer = Trainer(served.url, "unreadable", "on")
    for iteration in range(6):
        trainer.train(iteration, {2: 2.0})
    assert trainer.plan(6)["profile_version"] == 1
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("UPDATE learned SET body = ?", (b"{}",))
    assert trainer.plan(7)["profile_version"] is None
    assert "learned_unfit" in served.log


def test_times_that_no_clock_measures_are_refused(shared: ServedPlanner) -> None:
    trainer = Trainer(shared.url, "no-clock", "on")
    times = trainer.times(trainer.plan(0), {})
    times["replicas"][0]["wall_ms"] = 1e308
    answer = trainer.http.post("/v1/jobs/no-clock/iterations/0/timings", json=times)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid-request")


def test_what_is_not_there_is_told(shared: ServedPlanner) -> None:
    trainer = Trainer(shared.url, "told", "on")
    for path in ("", "/versions", "/versions/1"):
        answer = trainer.http.get(f"/v1/jobs/nobody/learning{path}")
        assert (answer.status_code, answer.json()["code"]) == (404, "unknown-job")
    assert trainer.http.post("/v1/jobs/nobody/learning/reset").json()["code"] == "unknown-job"
    answer = trainer.http.get("/v1/jobs/told/learning/versions/1")
    assert (answer.status_code, answer.json()["code"]) == (404, "not-found")
    assert trainer.get("/versions") == {"versions": [], "next_after": None}


def test_restarts_and_other_services_in_between_change_nothing_of_what_is_learned(serve: Serve, tmp_path: Path) -> None:
    database = tmp_path / "shared.sqlite3"
    services = [serve("--workers", "1", database=database) for _ in range(2)]
    steady, moving = Trainer(services[0].url, "steady", "on"), Trainer(services[0].url, "moving", "on")
    for iteration in range(8):
        slow = {1: 2.0} if iteration >= 3 else {}
        if iteration == 4:
            assert services[1].stop() == 0
            services[1] = serve("--workers", "1", database=database)
        moving.http = httpx.Client(base_url=services[iteration % 2].url, timeout=60.0)
        plans = [trainer.train(iteration, slow) for trainer in (steady, moving)]
        assert plans[0]["digest"] == plans[1]["digest"]
        assert plans[0]["profile_version"] == plans[1]["profile_version"]
    assert plans[0]["profile_version"] == 1
    with closing(sqlite3.connect(database)) as connection:
        bodies = connection.execute("SELECT body FROM learners").fetchall()
    assert len(bodies) == 2
    assert {**steady.get(), "job": ""} == {**moving.get(), "job": ""}


def test_slow_ranks_stay_among_the_others_where_strategies_must_be_homogeneous(shared: ServedPlanner) -> None:
    trainer = Trainer(shared.url, "homogeneous", "on", options={"deadline_ms": 200, "homogeneous": True})
    for iteration in range(6):
        trainer.train(iteration, {2: 2.0})
    version = trainer.get("/versions/1")
    assert "slow ranks stay among the others" in version["reasons"][-1]
    assert [pool["num_gpus"] for pool in version["pools"]] == [4]
    assert devices(trainer.plan(6)) == {"gpu": [0, 1, 2, 3]}


@pytest.mark.parametrize("policy", ["drop", "reject"])
def test_a_sequence_that_needs_the_whole_cluster_is_trained_on_although_a_slow_rank_is_set_apart(
    shared: ServedPlanner, policy: str
) -> None:
    options = {"deadline_ms": 200, "target_gap": 0.05, "over_long": policy}
    trainer = Trainer(shared.url, f"long-{policy}", "on", strategies=[], options=options)
    for iteration in range(12):
        plan = trainer.train(iteration, {2: 2.0} if iteration >= 3 else {})
    assert plan["profile_version"] is not None
    assert "gpu x2 slower" in devices(trainer.plan(12))
    plan = trainer.plan(13, 6000)
    assert plan["dropped"] == []
    assert plan["profile_version"] is None
    assert [(own["tp"], own["ranks"]) for own in plan["replicas"]] == [(4, [0, 1, 2, 3])]
    longest = trainer.plan(14, 6000, 9000) if policy == "drop" else None
    assert longest is None or [(own["length"], own["count"]) for own in longest["dropped"]] == [(9000, 1)]
