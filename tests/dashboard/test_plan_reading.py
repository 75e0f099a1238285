"""What holds of a plan's overview: it is bounded, and says what the plan says."""

from collections import Counter
from itertools import pairwise
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner_client.contract import PlanRequest
from planner_service.dashboard.lengths import MAX_LAYOUTS, length_bins
from planner_service.dashboard.plan_reading import MAX_RANKS_TEXT, PlanReading, loads_of, overview_of, rank_ranges
from planner_service.dashboard.timeline import PlannedPipeline, slowest_that_fit, timeline_of
from planner_service.profiles import builtin_profiles
from planner_service.simulation.records import Pipeline
from planner_service.translate import plan_request

LENGTHS = [30_000, 16_000, 9000, *range(200, 4200, 100), *[512] * 40]


@pytest.fixture(scope="module")
def plan() -> dict[str, Any]:
    request = PlanRequest.model_validate(
        {
            "profile": "llama-32b-a800-80g",
            "num_gpus": 64,
            "strategies": [
                [{"tp": 16, "pp": 1, "num_replicas": 1}, {"tp": 8, "pp": 2, "num_replicas": 3}],
                [{"tp": 4, "pp": 1, "num_replicas": 16}],
            ],
            "lengths": LENGTHS,
        }
    )
    made = plan_request(request, [builtin_profiles()["llama-32b-a800-80g"]], remaining_ms=lambda: 2000.0)
    return dict(made.model_dump())


def timings(*wall_ms: float) -> bytes:
    return orjson.dumps({"replicas": [{"replica": number, "wall_ms": took} for number, took in enumerate(wall_ms)]})


def test_an_overview_says_what_the_plan_says(plan: dict[str, Any]) -> None:
    reading = PlanReading.of(orjson.dumps(plan), [timings(4000.0, 3000.0), timings(4100.0)])
    overview = overview_of("job", 3, reading, 200)
    assert overview.plan.makespan_ms == plan["makespan_ms"]
    assert overview.plan.lower_bound_ms == plan["lower_bound_ms"]
    assert [entry.model_dump() for entry in overview.plan.passed_over] == plan["passed_over"] != []
    assert (overview.num_replicas, overview.num_measured, overview.measured_ms) == (4, 2, 4100.0)
    assert overview.replicas.makespan_ms.mean == [pytest.approx(replica["makespan_ms"]) for replica in plan["replicas"]]
    assert overview.replicas.measured_ms.mean == [4100.0, 3000.0, None, None]
    assert overview.replicas.layout == ["(16,1)", "(8,2)", "(8,2)", "(8,2)"]
    assert sum(overview.lengths.num_sequences) == plan["num_sequences"]
    assert sum(overview.lengths.num_tokens) == plan["num_tokens"]
    assert overview.timeline.total_ms == pytest.approx(plan["simulated_ms"])
    assert overview.timeline.num_replicas_shown == 4
    assert len(overview.timeline.row_name) == 1 + 3 * 2


def test_the_longest_sequences_are_shown_where_they_run(plan: dict[str, Any]) -> None:
    lengths = overview_of("job", 3, PlanReading.of(orjson.dumps(plan), []), 200).lengths
    longest = {told.layout: told.num_sequences[-1] for told in lengths.layouts}
    assert longest == {"(16,1)": 1, "(8,2)": 0}


def test_loads_of_replicas_add_up_to_the_plan(plan: dict[str, Any]) -> None:
    reading = PlanReading.of(orjson.dumps(plan), [timings(4000.0)])
    loads = [reading.load(number) for number in range(reading.num_replicas)]
    assert sum(load.num_sequences for load in loads) == plan["num_sequences"]
    assert sum(load.num_tokens for load in loads) == plan["num_tokens"]
    assert [load.measured_ms for load in loads] == [4000.0, None, None, None]
    assert sorted(load.ranks for load in loads) == ["0-15", "16-31", "32-47", "48-63"]


def test_many_replicas_share_points() -> None:
    replica = {"tp": 1, "cp": 1, "pp": 1, "device": "x", "makespan_ms": 0.0, "simulated_ms": 0.0, "micro_batches": []}
    reading = PlanReading({"replicas": [replica] * 1000}, {})
    loads = loads_of(reading, 200)
    assert (len(loads.first), loads.first[-1], loads.last[-1]) == (200, 995, 999)


@given(
    st.lists(
        st.tuples(st.integers(1, 8), st.lists(st.floats(0.1, 1000.0), max_size=30), st.floats(0.0, 1e6)), max_size=60
    )
)
def test_pipelines_are_drawn_within_bounds_slowest_first(shapes: list[tuple[int, list[float], float]]) -> None:
    pipelines = [
        PlannedPipeline(number, simulated_ms, Pipeline("(1,1)", num_stages, tuple(times)))
        for number, (num_stages, times, simulated_ms) in enumerate(shapes)
    ]
    chosen = slowest_that_fit(pipelines, max_rows=20, max_operations=400)
    timeline = timeline_of(chosen)
    assert len(timeline.row_name) <= 20
    assert len(timeline.row) <= 400
    left = {entry.replica for entry in pipelines} - {entry.replica for entry in chosen}
    assert not chosen or all(pipelines[number].simulated_ms <= chosen[-1].simulated_ms for number in left)
    for begin, end in zip(timeline.begin_ms, timeline.end_ms, strict=True):
        assert begin <= end <= timeline.total_ms + 0.001


def test_a_replica_with_more_micro_batches_than_can_be_drawn_is_left_out() -> None:
    endless = PlannedPipeline(0, 9.0, Pipeline("(1,4)", 4, (1.0,) * 100_000))
    assert timeline_of(slowest_that_fit([endless])).num_replicas_shown == 0


@given(
    st.dictionaries(
        st.sampled_from([f"({tp},1)" for tp in range(1, 13)]),
        st.dictionaries(st.integers(1, 2**31 - 1), st.integers(1, 50), min_size=1, max_size=40),
    )
)
def test_bins_hold_every_sequence_once(by_layout: dict[str, dict[int, int]]) -> None:
    bins = length_bins(by_layout)
    totals: Counter[int] = Counter()
    for counts in by_layout.values():
        totals.update(counts)
    assert len(bins.shortest) <= 32
    assert len(bins.layouts) <= MAX_LAYOUTS + 1
    assert all(longest + 1 == shortest for longest, shortest in zip(bins.longest, bins.shortest[1:], strict=False))
    for index, (shortest, longest) in enumerate(zip(bins.shortest, bins.longest, strict=True)):
        within = {length: count for length, count in totals.items() if shortest <= length <= longest}
        assert bins.num_sequences[index] == sum(within.values())
        assert bins.num_tokens[index] == sum(length * count for length, count in within.items())
        assert sum(told.num_sequences[index] for told in bins.layouts) == bins.num_sequences[index]
    assert sum(bins.num_sequences) == sum(totals.values())
    assert all(first < second for first, second in pairwise(bins.shortest))


def test_ranks_are_written_as_ranges_and_never_at_any_length() -> None:
    assert rank_ranges([3, 0, 1, 2, 32]) == "0-3,32"
    assert len(rank_ranges(range(0, 10_000, 2))) == MAX_RANKS_TEXT + 1
