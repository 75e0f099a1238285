import pytest
from machines import cost_ms, make_settings, noise_of, run_all

from planner_client.contract import Device, ProfileMeasurement
from worker_agent.profiler import split_held_out
from worker_agent.profiler.assemble import measurement_of
from worker_agent.profiler.readings import Measured, read_round
from worker_agent.profiler.records import Collective, CollectiveRecord, Round
from worker_agent.profiler.settings import ProfilingSettings

DEVICE = Device(name="d", memory_bytes=2**30)


def measure(settings: ProfilingSettings, **how: int) -> ProfileMeasurement:
    progress = run_all(settings, noise_of(0.02), **how)
    timed = CollectiveRecord(collective=Collective(kind="send", num_ranks=2, num_bytes=8), time_ms=0.5)
    return measurement_of(settings, (*progress.records, timed), DEVICE, num_cores=4)


def test_every_reading_becomes_a_sample_of_its_layout() -> None:
    settings = make_settings(num_ranks=2, num_memory_levels=2)
    measurement = measure(settings)
    assert [(layout.tp, layout.pp) for layout in measurement.layouts] == [(1, 1), (2, 1), (1, 2)]
    for layout in measurement.layouts:
        assert layout.max_tokens == 512
        assert len({tuple(sample.lengths) for sample in layout.samples}) == 10
        assert all(
            sample.time_ms == pytest.approx(cost_ms(sample.lengths, layout.tp, layout.pp), rel=0.03)
            for sample in layout.samples
        )
        assert layout.has_memory
    assert measurement.sync_ms == pytest.approx(3.0)
    assert "foreign load 0.30 of 4 cores" in measurement.source
    assert [(one.kind, one.num_bytes) for one in measurement.collectives] == [("send", 8)]


def test_the_slowest_rank_of_a_replica_counts() -> None:
    settings = make_settings("2x1", num_ranks=4)
    ranks = [Measured(20.0 + rank, 15.0, 0.01, -1.0, (1.0 + rank, 9.0 - rank)) for rank in range(4)]
    measured = Round(layout=0, kind="time", packings=(3, 5))
    record = read_round(settings, measured, ranks, elapsed_s=0.1, busy_s=0.14)
    assert [(reading.packing, reading.time_ms) for reading in record.readings] == [
        (3, 2.0),
        (5, 9.0),
        (5, 4.0),  # the second replica begins with the other micro-batch
        (3, 7.0),
    ]
    assert record.overhead_ms == pytest.approx(8.0)
    assert record.foreign_cores == pytest.approx(1.0)


def test_limits_are_left_to_measured_memory_where_that_is_asked_for() -> None:
    settings = make_settings("1x1", num_ranks=2, num_memory_levels=3, limit="memory")
    assert measure(settings).layouts[0].max_tokens is None


def test_a_layout_is_limited_to_what_fitted() -> None:
    settings = make_settings("1x1", num_ranks=2, num_memory_levels=4)
    layout = measure(settings, most_tokens=300).layouts[0]
    assert layout.max_tokens == max(sum(sample.lengths) for sample in layout.samples) <= 300


def test_a_layout_that_nothing_fits_is_refused_by_name() -> None:
    settings = make_settings("1x1,2x1", num_ranks=2, num_memory_levels=2)
    with pytest.raises(ValueError, match="smallest micro-batches of layout 1x1"):
        measure(settings, most_tokens=1)


def test_held_out_micro_batches_are_never_fitted() -> None:
    """Holding out.

    1. A micro-batch is held out with all its repeats, or fitted with all of them.
    2. Every fourth is held out, in every layout.
    """
    measurement = measure(make_settings(num_ranks=2))
    fitted, held_out = split_held_out(measurement)
    for kept, apart in zip(fitted.layouts, held_out, strict=True):
        kept_lengths = {tuple(sample.lengths) for sample in kept.samples}
        apart_lengths = {tuple(sample.lengths) for sample in apart}
        assert not kept_lengths & apart_lengths
        assert (len(kept_lengths), len(apart_lengths)) == (8, 2)


def test_too_few_micro_batches_are_not_split() -> None:
    measurement = measure(make_settings("1x1", num_ranks=2))
    few = measurement.layouts[0].model_copy(update={"samples": measurement.layouts[0].samples[:4]})
    with pytest.raises(ValueError, match="different micro-batches are too few to hold some out"):
        split_held_out(measurement.model_copy(update={"layouts": [few]}))
