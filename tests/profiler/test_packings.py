import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from worker_agent.profiler.packings import draw_packings, memory_packings


@given(
    max_tokens=st.integers(64, 20_000),
    share=st.floats(0.1, 1.0),
    num_packings=st.integers(8, 40),
    num_levels=st.integers(0, 6),
    seed=st.integers(0, 10_000),
)
@settings(deadline=None)
def test_packings_keep_to_the_limits(
    max_tokens: int, share: float, num_packings: int, num_levels: int, seed: int
) -> None:
    """Packings to measure.

    1. There are as many as asked for, none empty.
    2. No micro-batch is over its cap and no sequence over the longest.
    3. The longest sequence is measured alone.
    4. The same seed draws the same.
    5. Those whose memory is measured ascend in tokens, and the largest of all is among them.
    """
    max_length = max(32, int(share * max_tokens))
    packings = draw_packings(max_tokens, max_length, num_packings, seed)
    assert len(packings) == num_packings
    assert all(packing and min(packing) >= 1 for packing in packings)
    assert max(sum(packing) for packing in packings) <= max_tokens
    assert max(max(packing) for packing in packings) <= max_length
    assert [max_length] in packings
    assert packings == draw_packings(max_tokens, max_length, num_packings, seed)
    tokens = [sum(packings[number]) for number in memory_packings(packings, num_levels)]
    assert tokens == sorted(set(tokens))
    assert tokens[-1:] == ([max(map(sum, packings))] if num_levels else [])


def test_packings_tell_squares_from_tokens() -> None:
    packings = draw_packings(8192, 8192, 28, seed=0)
    design = np.array([[sum(n * n for n in lengths), sum(lengths), 1.0] for lengths in packings])
    scaled = design / np.linalg.norm(design, axis=0)
    assert np.linalg.cond(scaled) < 30
