"""Training on several hosts goes on in time, or stops with a reason on all, whatever happens to hosts and links."""

from pathlib import Path

import pytest
from host_cluster import host_cluster
from host_network import FABRIC, HostNetwork
from host_training import HostRun, all_is_as_promised, ended_well, stop_by, suffer


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("every", "num_more"), [(2, 3), pytest.param(16, 30, marks=[pytest.mark.bench, pytest.mark.long])]
)
def test_a_run_by_agents_goes_on_through_each_failure_once_and_resumes_after_those_that_stop_it(
    network: HostNetwork, tmp_path: Path, every: int, num_more: int
) -> None:
    with host_cluster(network, tmp_path / "cluster") as cluster:
        run = HostRun(cluster, tmp_path, pace_s=0.1)
        with run.started() as ranks:
            suffer(run, every=every, lasts_s=2.0)
            stop_by(ranks, lambda: network.lose("host-1"), lost=[1])
        cluster.restart_agent("host-1")
        with run.started() as ranks:
            run.await_iterations(2)
            with network.cut("host-2", FABRIC):
                stop_by(ranks, lambda: None)
        num_iterations = max(line["iteration"] for line in run.lines()) + num_more
        with run.started(num_iterations) as ranks:
            ended_well(ranks)
        lines = all_is_as_promised(run, num_iterations)
    assert lines[-1]["plan_origin"] == "service"
    print(  # noqa: T201 - the figures are what a bench is for
        f"\n{num_iterations} iterations; plans of the service again after (s) "
        f"{ {name: round(took_s, 1) for name, took_s in run.resumed_after_s.items()} }; longest wait for a plan "
        f"{max(line['waited_ms'] for line in lines):.0f} ms; "
        f"{sum(line['plan_origin'] != 'service' for line in lines)} iterations by plans made without the service"
    )
