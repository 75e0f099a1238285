import os
import time
from typing import Any

import pytest
import ranks_work

from worker_agent.local_ranks import RanksFailed, run_on_local_ranks


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_ranks_meet_with_one_thread_each_and_their_results_come_back_by_rank() -> None:
    events: list[Any] = []
    results = run_on_local_ranks(ranks_work.sum_ranks, 10, num_ranks=2, timeout_s=60, on_event=events.append)
    assert results == [(0, 2, 21, 1), (1, 2, 21, 1)]
    assert sorted(events) == [("begun", 0), ("begun", 1)]


def test_the_fault_of_one_rank_is_named_and_ends_all() -> None:
    started = time.monotonic()
    with pytest.raises(RanksFailed, match="rank 1 failed: LookupError: the last rank found nothing") as caught:
        run_on_local_ranks(ranks_work.fail_on_last_rank, None, num_ranks=2, timeout_s=60)
    assert time.monotonic() - started < 30
    assert caught.value.faults[1] == "LookupError: the last rank found nothing"
    assert any("fail_on_last_rank" in note for note in caught.value.__notes__)


def test_a_killed_rank_is_noticed_and_named() -> None:
    started = time.monotonic()
    with pytest.raises(RanksFailed, match=r"rank 1 was killed by signal 9 \(SIGKILL\)"):
        run_on_local_ranks(ranks_work.die_on_last_rank, None, num_ranks=2, timeout_s=60)
    assert time.monotonic() - started < 30


def test_a_killed_rank_is_named_before_those_that_miss_it() -> None:
    with pytest.raises(RanksFailed, match=r"^rank 1 was killed by signal 9 \(SIGKILL\)") as caught:
        run_on_local_ranks(ranks_work.wait_for_one_that_dies, None, num_ranks=2, timeout_s=60)
    # On a busy machine the other rank may be stopped before it could tell what it met.
    if caught.value.faults:
        assert set(caught.value.faults) == {0}
        assert "of the others: rank 0" in str(caught.value)


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ({"num_ranks": 0}, "num_ranks is 0"),
        ({"timeout_s": -1.0}, "timeout_s is -1.0; give more than 0 s"),
        ({"timeout_s": float("nan")}, "timeout_s is nan"),
        ({"collective_timeout_s": float("inf")}, "collective_timeout_s is inf"),
    ],
)
def test_limits_that_are_none_are_refused(limits: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        run_on_local_ranks(ranks_work.sum_ranks, 1, **({"num_ranks": 1, "timeout_s": 60.0} | limits))


def test_ranks_that_take_too_long_are_stopped_and_leave_no_process() -> None:
    pids: list[int] = []
    with pytest.raises(RanksFailed, match="did not finish within 8 s and were stopped"):
        run_on_local_ranks(ranks_work.sleep_long, None, num_ranks=1, timeout_s=8, on_event=pids.append)
    assert len(pids) == 1
    assert not is_running(pids[0])


def test_an_error_of_the_listener_stops_the_ranks_too() -> None:
    pids: list[int] = []

    def refuse(pid: int) -> None:
        pids.append(pid)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_on_local_ranks(ranks_work.sleep_long, None, num_ranks=1, timeout_s=60, on_event=refuse)
    assert not is_running(pids[0])


def test_a_rank_whose_result_cannot_travel_is_named_at_once() -> None:
    started = time.monotonic()
    with pytest.raises(RanksFailed, match="rank 1 ended without a result"):
        run_on_local_ranks(ranks_work.leave_without_a_result, None, num_ranks=2, timeout_s=60.0)
    assert time.monotonic() - started < 40
