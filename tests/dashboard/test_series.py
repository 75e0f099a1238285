"""What holds of a job's series, whatever iterations it has.

1. Points are ascending, do not overlap, and every iteration falls into exactly one.
2. There are no more points than were asked for.
3. Numbers of planned, failed and unfinished iterations add up to the iterations.
4. Lowest, mean and highest of a figure are those of the iterations that have it; a point without any has none.
5. Strategies' counts add up to the planned iterations.
6. While iterations are added, points that are full stay as they are.
"""

import orjson
from hypothesis import given
from hypothesis import strategies as st

from planner_service.dashboard.series import MAX_STRATEGIES, Window, series_of
from planner_service.store import IterationRow


def row(
    iteration: int, *, makespan_ms: float | None = None, strategy: str = "(8,1)x1", has_failed: bool = False
) -> IterationRow:
    if makespan_ms is None:
        return IterationRow("job", iteration, "failed" if has_failed else "collecting", 1, 1, 0.0)
    summary = orjson.dumps({"makespan_ms": makespan_ms, "strategy": strategy, "gap": 0.0})
    return IterationRow("job", iteration, "planned", 1, 1, 0.0, summary=summary)


def window(rows: list[IterationRow]) -> Window:
    return Window(rows, len(rows), has_older=False, has_newer=False)


numbers = st.one_of(
    st.sets(st.integers(0, 3000), max_size=300),
    st.sets(st.integers(0, 2**53), max_size=60),
    st.builds(lambda first, count: set(range(first, first + count)), st.integers(0, 10**9), st.integers(0, 300)),
)


@given(numbers, st.integers(10, 40), st.integers(1, 10**6))
def test_a_series_holds_its_invariants(found: set[int], max_points: int, seed: int) -> None:
    rows = []
    for number in sorted(found):
        chance = (number * 7919 + seed) % 1000 / 1000
        made = None if chance < 0.3 else 1000.0 * chance
        rows.append(row(number, makespan_ms=made, strategy=f"(8,1)x{int(chance * 30)}", has_failed=chance < 0.1))
    series = series_of("job", window(rows), max_points)
    assert len(series.first) <= max_points
    ends = -1
    for point, (first, last) in enumerate(zip(series.first, series.last, strict=True)):
        assert ends < first <= last
        ends = last
        within = [entry for entry in rows if first <= entry.iteration <= last]
        counted = series.num_planned[point] + series.num_failed[point] + series.num_open[point]
        assert counted == len(within) > 0
        made = [orjson.loads(entry.summary)["makespan_ms"] for entry in within if entry.summary]
        assert sum(each.counts[point] for each in series.strategies) == len(made) == series.num_planned[point]
        if made:
            assert series.makespan_ms.lowest[point] == round(min(made), 6)
            assert series.makespan_ms.highest[point] == round(max(made), 6)
            assert abs(series.makespan_ms.mean[point] - sum(made) / len(made)) < 1e-5  # type: ignore[operator]
        else:
            assert series.makespan_ms.mean[point] is series.makespan_ms.lowest[point] is None
        assert series.measured_ms.highest[point] is None
    total = sum(map(sum, (series.num_planned, series.num_failed, series.num_open)))
    assert total == len(rows) == series.num_read


@given(st.integers(0, 500), st.integers(20, 400), st.integers(1, 40))
def test_full_points_stay_while_iterations_are_added(first: int, count: int, added: int) -> None:
    before = series_of("job", window([row(number) for number in range(first, first + count)]), 400)
    after = series_of("job", window([row(number) for number in range(first, first + count + added)]), 400)
    if len(before.first) == count and len(after.first) < count + added:
        return  # points got wider, which happens a few times in a job's life
    assert after.first[: len(before.first) - 1] == before.first[:-1]
    assert after.last[: len(before.last) - 1] == before.last[:-1]


def test_only_the_most_frequent_strategies_are_told_apart() -> None:
    rows = [row(number, makespan_ms=1.0, strategy=f"(8,1)x{number % 20}") for number in range(1000)]
    series = series_of("job", window(rows), 10)
    assert len(series.strategies) == MAX_STRATEGIES + 1
    assert series.strategies[-1].strategy is None
    assert series.num_strategies == 20


def test_a_job_without_iterations_has_no_points() -> None:
    series = series_of("job", window([]), 400)
    assert series.first == series.makespan_ms.mean == series.strategies == []
