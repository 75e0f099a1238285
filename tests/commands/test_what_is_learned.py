"""`hydraulis jobs learned` and `jobs reset`, against a service whose job has a slow rank."""

import pytest
from command_line import hydraulis
from contents import PROFILE, spec

from planner_client import PlannerClient
from planner_client.contract import IterationTimings, Plan, ReplicaTiming, SourceBatch

STRATEGIES = [[{"tp": 4, "pp": 1, "num_replicas": 2}]]


@pytest.fixture(scope="module")
def learned(filled: str) -> str:
    """Name of a job whose rank 2 takes twice as long."""
    name = "learner"
    with PlannerClient(filled) as client:
        client.register_job(spec(name, sources=["a"], strategies=STRATEGIES, learning="on"))
        for iteration in range(6):
            lengths = [200 + 10 * ((iteration + number) % 30) for number in range(40)]
            client.report(name, iteration, "a", SourceBatch(lengths=lengths))
            plan = client.iteration_plan(name, iteration, wait_s=30.0)
            assert isinstance(plan, Plan)
            client.report_timings(name, iteration, measured(plan))
    return name


def measured(plan: Plan) -> IterationTimings:
    replicas = []
    for number, replica in enumerate(plan.replicas):
        # Of a rank that was set apart the plan predicts the longer time itself.
        factor = 2.0 if 2 in replica.ranks and "slower" not in replica.device else 1.0
        times = [entry.time_ms * factor for entry in replica.micro_batches]
        replicas.append(ReplicaTiming(replica=number, wall_ms=sum(times), micro_batch_ms=times))
    return IterationTimings(digest=plan.digest, iteration=plan.iteration or 0, replicas=replicas)


def test_what_a_job_learned_is_shown_with_its_versions(planner: str, learned: str) -> None:
    assert planner
    shown = hydraulis("jobs", "learned", learned)
    assert (shown.code, shown.err) == (0, "")
    assert "on: plans are made with what was learned" in shown.out
    assert "ranks 0, 1, 2, 3 of A100 40GB take 2 times as long" in shown.out
    assert "6 with measured times" in shown.out
    assert "ranks 0-3 take 2 times as long as others of their type" in shown.out
    assert "learning" in hydraulis("jobs", "show", learned).out


def test_a_version_is_shown_by_its_number(planner: str, learned: str) -> None:
    assert planner
    shown = hydraulis("jobs", "learned", learned, "--version", "1")
    assert (shown.code, shown.err) == (0, "")
    assert "made after the times of iteration" in shown.out
    document = hydraulis("jobs", "learned", learned, "--version", "1", "--json").json()
    assert document["slow"] == [{"device": "A100 40GB", "factor": 2.0, "ranks": [0, 1, 2, 3]}]
    assert document["strategies"] == [
        [
            {"tp": 4, "cp": 1, "pp": 1, "num_replicas": 1, "device": "A100 40GB"},
            {"tp": 4, "cp": 1, "pp": 1, "num_replicas": 1, "device": "A100 40GB x2 slower"},
        ]
    ]
    assert {pool["profile"]["name"] for pool in document["pools"]} == {PROFILE}
    none = hydraulis("jobs", "learned", learned, "--version", "99")
    assert none.code == 2
    assert "has no version 99" in none.said


def test_machines_get_one_document_of_everything(planner: str, learned: str) -> None:
    assert planner
    document = hydraulis("jobs", "learned", learned, "--json").json()
    assert document["mode"] == "on"
    assert document["versions"][0]["version"] == document["version"]
    with PlannerClient(planner) as client:
        assert client.learning(learned).model_dump(mode="json") == {
            k: v for k, v in document.items() if k != "versions"
        }
        assert client.learned_versions(learned, limit=1)[0].version == document["version"]


def test_what_was_learned_is_forgotten_on_request(planner: str, learned: str) -> None:
    before = hydraulis("jobs", "learned", learned, "--json").json()["version"]
    done = hydraulis("jobs", "reset", learned)
    assert done.code == 0
    assert f"holds again, as version {before + 1}" in done.said
    after = hydraulis("jobs", "learned", learned, "--json").json()
    assert (after["version"], after["slow"], after["num_iterations"]) == (before + 1, [], 0)
    with PlannerClient(planner) as client:
        assert client.learned_version(learned, before + 1).iteration is None
