from pathlib import Path

import pytest
import torch

from planner_client.contract import ProfileMeasurement
from worker_agent.executor.shape import DecoderConfig
from worker_agent.profiler import Journal, MeasuringProgress, ProfilingSettings, measure, parse_layouts
from worker_agent.profiler.collectives import planned_collectives
from worker_agent.profiler.machine import PeakMemory
from worker_agent.profiler.rounds import Progress

SETTINGS = ProfilingSettings(
    name="tiny",
    config=DecoderConfig(vocab_size=16, hidden_size=16, num_layers=2, num_heads=2),
    max_tokens=256,
    max_length=128,
    layouts=parse_layouts("1x1,2x1,1x2"),
    num_packings=8,
    num_repeats=1,
    num_memory_levels=2,
    with_collectives=True,
    timeout_s=100,
)


class Stopped(Exception):  # noqa: N818 - names what happened
    pass


def test_a_measurement_that_was_stopped_goes_on_and_measures_all_layouts(tmp_path: Path) -> None:
    path = tmp_path / "measured.journal"
    seen: list[MeasuringProgress] = []

    def stop(progress: MeasuringProgress) -> None:
        if progress.done:
            raise Stopped

    with Journal(path, SETTINGS) as journal, pytest.raises(Stopped):
        measure(SETTINGS, stop, journal)
    with Journal(path, SETTINGS) as journal:
        before = journal.records
        measurement = measure(SETTINGS, seen.append, journal)
    with Journal(path, SETTINGS) as journal:
        assert journal.records[: len(before)] == before
        progress = Progress.of(SETTINGS, journal.records)
    assert progress.next_round is None
    rounds = [record.round for record in progress.records]
    assert len(rounds) == len(set(rounds))  # nothing was measured twice
    num_collectives = len(planned_collectives(SETTINGS))
    assert len(seen) == len(rounds) + num_collectives - len(before)
    assert (seen[-1].done, seen[-1].total) == (24, 24)
    check_plausible(measurement)


def check_plausible(measurement: ProfileMeasurement) -> None:
    packings = {tuple(lengths) for lengths in Progress(SETTINGS, ()).packings}
    for layout in measurement.layouts:
        assert {tuple(sample.lengths) for sample in layout.samples} == packings
        assert all(0 < sample.time_ms < 60_000 for sample in layout.samples)
        peaks = [sample.memory_bytes for sample in layout.samples if sample.memory_bytes is not None]
        assert all(2**24 < peak < measurement.device.memory_bytes for peak in peaks)
        assert peaks  # as on any Linux
    assert measurement.sync_ms > 0
    assert measurement.device.gpus_per_node == 2
    assert {(one.kind, one.num_ranks) for one in measurement.collectives} == {
        ("all-reduce", 2),
        ("all-to-all", 2),
        ("send", 2),
    }
    assert ProfileMeasurement.model_validate_json(measurement.model_dump_json()) == measurement


def test_peak_memory_is_that_since_the_last_reset() -> None:
    memory = PeakMemory(torch.device("cpu"))
    memory.reset()
    before = memory.read_bytes()
    assert before is not None
    held = torch.ones(2**26, dtype=torch.uint8)
    with_it = memory.read_bytes()
    del held
    memory.reset()
    after = memory.read_bytes()
    assert with_it is not None
    assert after is not None
    assert with_it - before > 2**25
    assert with_it - after > 2**25
