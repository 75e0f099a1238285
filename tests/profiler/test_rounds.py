from itertools import groupby

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from machines import make_settings, noise_of, run_all

from worker_agent.profiler.rounds import MICRO_BATCHES_PER_ROUND, Progress, is_outlier, is_stable, reference_ms


@given(
    layouts=st.sampled_from(["1x1", "2x1", "1x1,2x1,1x2", "1x4,4x1,2x2", "1x3"]),
    num_ranks=st.sampled_from([4, 5]),
    num_packings=st.integers(8, 20),
    num_repeats=st.integers(1, 4),
    more_repeats=st.integers(0, 3),
    num_levels=st.sampled_from([0, 2, 4]),
    spread=st.sampled_from([0.0, 0.04, 0.3]),
    seed=st.integers(0, 99),
)
@settings(deadline=None, max_examples=60)
def test_rounds_measure_all_there_is(
    *,
    layouts: str,
    num_ranks: int,
    num_packings: int,
    num_repeats: int,
    more_repeats: int,
    num_levels: int,
    spread: float,
    seed: int,
) -> None:
    """Rounds.

    1. Every micro-batch of every layout is run as often as asked for at least, and until it is stable or was run as
       often as allowed.
    2. None that is stable is run again, but to fill a pipeline.
    3. Memory comes first, level by level; no round is larger than said.
    4. A measurement that was stopped anywhere goes on with what would have come next.
    """
    what = make_settings(
        layouts,
        num_ranks=num_ranks,
        num_packings=num_packings,
        num_repeats=num_repeats,
        max_repeats=num_repeats + more_repeats,
        num_memory_levels=num_levels,
        seed=seed,
    )
    progress = run_all(what, noise_of(spread, seed))
    for number, layout in enumerate(what.layouts):
        for packing in range(num_packings):
            runs, times = progress.num_runs[number, packing], progress.times_ms[number, packing]
            assert runs >= num_repeats
            assert is_stable(times) or runs >= what.most_repeats
            # A time round runs it on every replica, a memory round once more on each.
            levels = num_levels > 0 and packing in progress.memory_levels
            assert len(times) == (runs + levels) * what.num_replicas(layout)
            if layout.pp == 1:
                assert runs <= what.most_repeats
    kinds = [kind for kind, _ in groupby(record.round.kind for record in progress.records)]
    assert kinds == (["memory", "time"] if num_levels else ["time"])
    assert max(len(record.round.packings) for record in progress.records) <= MICRO_BATCHES_PER_ROUND
    cut = len(progress.records) // 2
    assert Progress(what, progress.records[:cut]).next_round == progress.records[cut].round
    assert Progress(what, progress.records).work_left == 0


def test_steady_times_end_a_measurement_early_and_unsteady_ones_do_not() -> None:
    what = make_settings("1x1", num_ranks=2, num_repeats=2, max_repeats=6)
    steady, unsteady = run_all(what, noise_of(0.04)), run_all(what, noise_of(5.0))
    assert set(steady.num_runs.values()) == {2}
    assert max(unsteady.num_runs.values()) == 6


def test_layouts_take_turns() -> None:
    progress = run_all(make_settings(num_ranks=2, num_repeats=3), noise_of(0.0))
    turns = [layout for layout, _ in groupby(record.round.layout for record in progress.records)]
    assert turns == [0, 1, 2] * 3


def test_what_does_not_fit_is_not_measured() -> None:
    what = make_settings("1x1,2x1", num_ranks=2, num_memory_levels=4)
    progress = run_all(what, noise_of(0.0), most_tokens=300)
    for layout in (0, 1):
        largest = progress.largest_tokens(layout)
        assert 0 < largest <= 300
        measured = {packing for owner, packing in progress.times_ms if owner == layout}
        assert measured == {number for number, lengths in enumerate(progress.packings) if sum(lengths) <= largest}


def test_where_nothing_fits_nothing_is_measured() -> None:
    progress = run_all(make_settings("1x1", num_memory_levels=2), noise_of(0.0), most_tokens=1)
    assert progress.largest_tokens(0) == 0
    assert not progress.times_ms


@pytest.mark.parametrize(
    ("times_ms", "stable"),
    [
        ([], False),
        ([10.0, 10.0], False),
        ([10.0, 10.2, 10.5], True),
        ([10.0, 10.2, 10.51], False),
        ([50.0, 10.0, 80.0, 10.4, 10.1], True),
    ],
)
def test_three_fastest_times_that_agree_are_stable(*, times_ms: list[float], stable: bool) -> None:
    assert is_stable(times_ms) is stable


def test_a_time_far_over_the_fastest_is_an_outlier() -> None:
    times_ms = [10.0, 10.2, 10.4, 12.0, 13.0, 90.0]
    assert reference_ms(times_ms) == 10.2
    assert [is_outlier(time_ms, times_ms) for time_ms in times_ms] == [False, False, False, False, True, True]
    assert reference_ms([7.0, 9.0]) == 7.0
    with pytest.raises(ValueError, match="no time was measured"):
        reference_ms([])
