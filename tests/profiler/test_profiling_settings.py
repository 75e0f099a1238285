import pytest
from machines import make_settings

from planner_client.contract import MeasuredLayout, MicroBatchSample
from worker_agent.measuring_limits import MOST_RUNS
from worker_agent.profiler import Layout, parse_layouts
from worker_agent.profiler.packings import draw_packings
from worker_agent.profiler.settings import MOST_TOKENS, SHORTEST_TOKENS


def test_layouts_are_read_as_they_are_typed() -> None:
    assert parse_layouts("1x1, 2x1,1x2") == (Layout(1, 1), Layout(2, 1), Layout(1, 2))
    for wrong in ("", "2", "0x1", "2x", "1x1,", "axb", "99999x1"):
        with pytest.raises(ValueError, match="is no layout; write tensor x pipeline degrees"):
            parse_layouts(wrong)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_tokens": 0}, "max_tokens is 0; give at least 32"),
        ({"max_length": 1024}, "max_length 1024 exceeds max_tokens 512"),
        ({"num_ranks": 0}, "num_ranks is 0; give at least 1"),
        ({"num_packings": 3}, "num_packings is 3; give at least 8"),
        ({"max_tokens": 10**12}, "max_tokens is 1000000000000; give at most 3200000"),
        ({"num_ranks": 100_000}, "num_ranks is 100000; give at most 1024"),
        ({"num_packings": 10**9}, "num_packings is 1000000000; give at most 1000"),
        (
            {"num_packings": 9, "num_repeats": 9000, "max_repeats": 9000},
            "num_packings 9 times max_repeats 9000 is 81000 runs of a layout",
        ),
        ({"seed": -1}, "seed is -1; give at least 0"),
        ({"seed": 2**70}, "seed is 1180591620717411303424; give at most 4294967295"),
        ({"num_repeats": 0}, "num_repeats is 0; give at least 1"),
        ({"max_repeats": 1}, "max_repeats is 1; give at least 2"),
        ({"num_memory_levels": 1, "limit": "memory"}, "num_memory_levels is 1; give at least 2"),
        ({"clock": "cpu", "device": "cuda"}, "clock is 'cpu' but the ranks compute on GPUs"),
        ({"name": "a b"}, "name is 'a b'"),
        ({"layouts": ()}, "there is no layout to measure"),
        ({"layouts": parse_layouts("1x1,1x1")}, "layout 1x1 appears twice"),
        ({"layouts": parse_layouts("2x2")}, "layout 2x2 needs 4 ranks but 2 measure"),
        ({"layouts": parse_layouts("3x1"), "num_ranks": 4}, "layout 3x1 does not divide the model's 4 attention heads"),
        ({"layouts": parse_layouts("1x5"), "num_ranks": 5}, "layout 1x5 has more stages than the model has layers"),
    ],
)
def test_settings_out_of_range_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_settings(**({"num_ranks": 2, "layouts": parse_layouts("1x1")} | changes))  # type: ignore[arg-type]


def test_the_largest_measurement_that_may_be_asked_for_can_be_sent() -> None:
    fullest = max(map(len, draw_packings(MOST_TOKENS, MOST_TOKENS, 8, seed=0)))
    samples = [MicroBatchSample(lengths=[SHORTEST_TOKENS] * (MOST_TOKENS // SHORTEST_TOKENS), time_ms=1.0)]
    assert fullest <= len(samples[0].lengths)
    sample = MicroBatchSample(lengths=[SHORTEST_TOKENS], time_ms=1.0)
    assert MeasuredLayout(tp=1, pp=1, samples=[sample] * MOST_RUNS)
