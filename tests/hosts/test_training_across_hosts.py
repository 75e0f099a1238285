"""Training on several hosts goes on in time, or stops with a reason on all, whatever happens to hosts and links."""

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from chaos_training import WORLD_SIZE, figures, resumed_after_every_outage
from host_network import FABRIC, MANAGEMENT, HostNetwork
from host_ranks import HostRanks
from host_training import (
    all_ranks_stopped_in_time,
    lines_of,
    losses_are_those_of_one_rank,
    planner_host,
    rank_hosts,
    train_through_harms,
    train_until,
)
from served_planner import wait_until


@contextmanager
def lasting(s: float, harm: AbstractContextManager[None]) -> Iterator[None]:
    with harm:
        time.sleep(s)
        yield


@pytest.mark.timeout(240)
def test_training_goes_on_in_time_where_the_planner_is_cut_off_and_hosts_are_slow(
    network: HostNetwork, tmp_path: Path
) -> None:
    harms = {
        "the planner is cut off": lambda: lasting(3.0, network.cut("planner", MANAGEMENT)),
        "one host is slow": lambda: lasting(1.5, network.slowed("host-2", share=0.2)),
        "ranks lose a host for a moment": lambda: lasting(1.0, network.cut("host-1", FABRIC)),
    }
    end = train_through_harms(network, tmp_path, harms, pace_s=0.2)
    assert end.num_fallbacks > 0, figures(end)
    assert resumed_after_every_outage(end) > 0


@pytest.mark.timeout(240)
def test_ranks_that_lose_a_host_stop_with_a_named_error_and_a_restart_goes_on(
    network: HostNetwork, tmp_path: Path
) -> None:
    num_iterations = 10

    def ranks(attempt: int, url: str, pace_s: float) -> HostRanks:
        return HostRanks(
            rank_hosts(network), tmp_path / f"attempt-{attempt}", train_until, url, tmp_path, pace_s, num_iterations
        )

    def has_done(num_more: int) -> bool:
        done = len(lines_of(tmp_path)) + num_more
        return wait_until(lambda: len(lines_of(tmp_path)) >= done, 60.0)

    with planner_host(network, tmp_path / "planner") as (_, service):
        with ranks(1, service.url, 0.3) as cut_off:
            assert has_done(3)
            with network.cut("host-2", FABRIC):
                harmed_at = time.monotonic()
                ends = cut_off.ends(60.0)
            all_ranks_stopped_in_time([end.returned for end in ends], harmed_at)
        with ranks(2, service.url, 0.3) as bereft:
            assert has_done(2)
            harmed_at = time.monotonic()
            assert network.lose("host-1")
            ends = bereft.ends(60.0)
            assert ends.pop(1).exit_code == -9
            all_ranks_stopped_in_time([end.returned for end in ends], harmed_at)
        with ranks(3, service.url, 0.0) as resumed:
            ends = resumed.ends(60.0)
            assert [(end.raised, end.returned) for end in ends] == [(None, None)] * WORLD_SIZE
    losses_are_those_of_one_rank(lines_of(tmp_path), num_iterations)
