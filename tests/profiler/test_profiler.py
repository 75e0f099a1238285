from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from planner_client.contract import MeasuredLayout, MicroBatchSample, ProfileMeasurement
from worker_agent.executor.model import Decoder, DecoderConfig
from worker_agent.profiler import (
    MeasuringProgress,
    ProfilingSettings,
    draw_packings,
    lower_quartile,
    measure,
    run_micro_batch,
    split_held_out,
)

TINY = ProfilingSettings(
    name="tiny",
    config=DecoderConfig(vocab_size=16, hidden_size=16, num_layers=1, num_heads=2),
    max_tokens=512,
    max_length=256,
    num_packings=12,
    num_repeats=2,
    timeout_s=60,
)


@given(
    max_tokens=st.integers(64, 20_000),
    share=st.floats(0.1, 1.0),
    num_packings=st.integers(8, 40),
    seed=st.integers(0, 10_000),
)
@settings(deadline=None)
def test_packings_keep_to_the_limits(max_tokens: int, share: float, num_packings: int, seed: int) -> None:
    """Packings to measure.

    1. There are as many as asked for, none empty.
    2. No micro-batch is over its cap and no sequence over the longest.
    3. The longest sequence is measured alone.
    4. The same seed draws the same.
    """
    max_length = max(32, int(share * max_tokens))
    packings = draw_packings(max_tokens, max_length, num_packings, seed)
    assert len(packings) == num_packings
    assert all(packing and min(packing) >= 1 for packing in packings)
    assert max(sum(packing) for packing in packings) <= max_tokens
    assert max(max(packing) for packing in packings) <= max_length
    assert [max_length] in packings
    assert packings == draw_packings(max_tokens, max_length, num_packings, seed)


def test_packings_tell_squares_from_tokens() -> None:
    packings = draw_packings(8192, 8192, 28, seed=0)
    design = np.array([[sum(n * n for n in lengths), sum(lengths), 1.0] for lengths in packings])
    scaled = design / np.linalg.norm(design, axis=0)
    assert np.linalg.cond(scaled) < 30


def test_measuring_gives_one_plausible_sample_for_each_packing() -> None:
    seen: list[MeasuringProgress] = []
    measurement = measure(TINY, seen.append)
    (layout,) = measurement.layouts
    packings = draw_packings(512, 256, 12, seed=0)
    assert [sample.lengths for sample in layout.samples] == packings
    assert all(0 < sample.time_ms < 60_000 for sample in layout.samples)
    assert (layout.tp, layout.cp, layout.pp, layout.max_tokens) == (1, 1, 1, 512)
    assert measurement.sync_ms > 0
    assert measurement.device.memory_bytes > 2**20
    assert measurement.device.gpus_per_node == 2
    assert (measurement.model.hidden_size, measurement.model.num_layers, measurement.model.vocab_size) == (16, 1, 16)
    assert [progress.done for progress in seen] == list(range(1, 25))
    assert {progress.total for progress in seen} == {24}
    assert ProfileMeasurement.model_validate_json(measurement.model_dump_json()) == measurement


def test_a_longer_sequence_takes_longer() -> None:
    model = Decoder(DecoderConfig(vocab_size=16, hidden_size=32, num_layers=1, num_heads=2))
    tokens = torch.zeros(4096, dtype=torch.int64)
    run_micro_batch(model, [64], tokens)
    short = min(run_micro_batch(model, [64], tokens) for _ in range(3))
    long = min(run_micro_batch(model, [4096], tokens) for _ in range(3))
    assert long > 3 * short > 0


def test_running_a_micro_batch_reaches_every_weight() -> None:
    model = Decoder(DecoderConfig(vocab_size=16, hidden_size=16, num_layers=1, num_heads=2))
    run_micro_batch(model, [5, 1, 7], torch.arange(13))
    assert all(parameter.grad is not None and parameter.grad.abs().sum() > 0 for parameter in model.parameters())


def test_the_lower_quartile_ignores_bursts() -> None:
    assert lower_quartile([10.0, 10.0, 10.0, 10.0, 500.0, 900.0]) == pytest.approx(10.0)
    with pytest.raises(ValueError, match="no time was measured"):
        lower_quartile([])


def make_measurement(num_samples: int) -> ProfileMeasurement:
    samples = [MicroBatchSample(lengths=[number + 1], time_ms=1.0 + number) for number in range(num_samples)]
    layout = MeasuredLayout(tp=1, pp=1, max_tokens=100, samples=samples)
    return ProfileMeasurement(
        name="m",
        source="made up",
        model={"name": "m", "num_layers": 1, "hidden_size": 1, "vocab_size": 1},
        device={"name": "d", "memory_bytes": 1},
        layouts=[layout],
    )


@given(num_samples=st.integers(7, 60), every=st.integers(2, 4))
@settings(deadline=None)
def test_held_out_samples_are_never_fitted(num_samples: int, every: int) -> None:
    """Holding out.

    1. Fitted and held-out samples together are all samples, none in both.
    2. At least three are left for the fit, and at least one to check it.
    """
    measurement = make_measurement(num_samples)
    fitted, held_out = split_held_out(measurement, every)
    kept = fitted.layouts[0].samples
    assert sorted(sample.time_ms for sample in [*kept, *held_out]) == [1.0 + number for number in range(num_samples)]
    assert len(kept) >= 3
    assert len(held_out) == num_samples // every


def test_too_few_samples_are_not_split() -> None:
    with pytest.raises(ValueError, match="3 samples are too few to hold some out"):
        split_held_out(make_measurement(3))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_tokens": 0}, "max_tokens is 0; give at least 32"),
        ({"max_length": 1024}, "max_length 1024 exceeds max_tokens 512"),
        ({"num_ranks": 0}, "num_ranks is 0; give at least 1"),
        ({"num_packings": 3}, "num_packings is 3; give at least 8"),
        ({"num_repeats": 0}, "num_repeats is 0; give at least 1"),
    ],
)
def test_settings_out_of_range_are_refused(changes: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(TINY, **changes)
