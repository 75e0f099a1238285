"""A job against the real service, which is killed in the middle and started again."""

import signal
import socket
import sys
import time
from pathlib import Path

import pytest

from planner_client import ByJob, PlannerClient, SteadyPlan, SteadyPlanner, SteadySettings
from planner_client.breaker import BreakerPolicy
from planner_client.contract import IterationTimings, JobSpec, Plan, ReplicaTiming, SourceBatch
from planner_client.plan_check import check_answers

sys.path.append(str(Path(__file__).parent.parent / "service"))
from served_planner import servers, wait_until

SPEC = JobSpec.model_validate(
    {
        "name": "run-1",
        "profile": "llama-7b-a100-40g",
        "num_gpus": 8,
        "sources": ["node-0", "node-1"],
        "options": {"deadline_ms": 200},
    }
)
DEADLINE_S = 2.0
OVERSHOOT_S = 0.5


def batch(iteration: int) -> dict[str, SourceBatch]:
    lengths = [100 + (number * 131 + iteration * 17) % 1900 for number in range(60)]
    return {"node-0": SourceBatch(lengths=lengths[:40]), "node-1": SourceBatch(lengths=lengths[40:])}


def timings_of(taken: SteadyPlan, iteration: int) -> IterationTimings:
    return IterationTimings(
        digest=taken.plan.digest,
        iteration=iteration,
        replicas=[
            ReplicaTiming(replica=number, wall_ms=5.0, micro_batch_ms=[1.0] * len(replica.micro_batches))
            for number, replica in enumerate(taken.plan.replicas)
            if replica.micro_batches
        ],
    )


@pytest.mark.timeout(180)
def test_a_job_goes_on_in_time_while_its_service_is_killed_and_comes_back(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
    settings = SteadySettings(deadline_s=DEADLINE_S, window=3, breaker=BreakerPolicy(2, 0.3, 1.0))
    origins: dict[int, str] = {}
    by_service: dict[int, Plan] = {}
    with servers(tmp_path) as start:
        service = start("--workers", "1", "--port", port)
        with (
            PlannerClient(service.url) as client,
            SteadyPlanner(ByJob(client, SPEC), settings, keep_in=tmp_path / "plan.json") as planner,
        ):

            def step(iteration: int) -> None:
                """Take an iteration as a trainer does, with the next two announced."""
                for ahead in range(iteration, iteration + 3):
                    planner.announce(ahead, batch(ahead))
                began = time.monotonic()
                taken = planner.take(iteration)
                assert time.monotonic() - began < DEADLINE_S + OVERSHOOT_S
                check_answers(taken.plan, ByJob(client, SPEC).request(iteration, batch(iteration)))
                planner.report_timings(timings_of(taken, iteration))
                origins[iteration] = taken.origin
                if taken.origin == "service":
                    by_service[iteration] = taken.plan

            for iteration in range(4):
                step(iteration)
            assert set(origins.values()) == {"service"}
            assert wait_until(lambda: planner.counts.num_timings_sent == 4)
            service.stop(signal.SIGKILL)
            for iteration in range(4, 12):
                step(iteration)
            assert "fallback" in origins.values()
            assert planner.counts.breaker != "closed"
            start("--workers", "1", "--port", port)
            for iteration in range(12, 200):
                step(iteration)
                if iteration > 20 and origins[iteration] == "service":
                    break
                time.sleep(0.1)
            assert origins[max(origins)] == "service"
            assert planner.counts.breaker == "closed"
            assert wait_until(lambda: planner.counts.num_timings_sent == len(origins), 40)
            assert planner.counts.num_timings_dropped == 0
            kept = {number: client.iteration_plan("run-1", number) for number in by_service}
            assert kept == by_service
            assert client.iteration("run-1", 0).measured_ms == 5.0


def test_a_job_that_the_service_has_lost_is_registered_again(tmp_path: Path) -> None:
    with servers(tmp_path) as start:
        service = start("--workers", "1")
        with (
            PlannerClient(service.url) as client,
            SteadyPlanner(ByJob(client, SPEC), SteadySettings(deadline_s=10.0)) as planner,
        ):
            assert planner.plan(0, batch(0)).origin == "service"
            client.delete_job("run-1")
            assert planner.plan(1, batch(1)).origin == "service"
            with pytest.raises(ValueError, match="'node-1' is in only one of them"):
                planner.announce(2, {"node-0": SourceBatch(lengths=[5])})
            planner.announce(2, {"node-0": SourceBatch(lengths=[5]), "node-1": SourceBatch(lengths=[])})
            assert planner.take(2).plan.num_sequences == 1
