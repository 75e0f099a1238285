import sysconfig
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker_agent.demo.corpus import SKIPPED_DIRECTORIES, Corpus, draw_batches, held_by, read_corpus


def test_the_standard_library_reads_the_same_twice() -> None:
    assert read_corpus(4096) == read_corpus(4096)


@pytest.mark.parametrize("max_length", [256, 2048, 8192])
def test_every_file_is_kept_or_counted_as_left_out(max_length: int) -> None:
    corpus = read_corpus(max_length)
    root = Path(sysconfig.get_path("stdlib"))
    sizes = [
        path.stat().st_size
        for path in root.rglob("*.py")
        if not SKIPPED_DIRECTORIES.intersection(path.relative_to(root).parts[:-1])
    ]
    assert corpus.num_files == len(sizes)
    assert corpus.num_files == len(corpus.sequences) + corpus.num_over_long + corpus.num_empty
    assert corpus.num_tokens + corpus.num_over_long_tokens == sum(sizes)
    assert sorted(corpus.lengths) == sorted(size for size in sizes if 0 < size <= max_length)


def test_sequences_are_whole_files_in_the_order_of_their_paths(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "tests").mkdir()
    (tmp_path / "b" / "one.py").write_bytes(b"\xff\x00raw")
    (tmp_path / "a.py").write_bytes(b"first")
    (tmp_path / "empty.py").write_bytes(b"")
    (tmp_path / "long.py").write_bytes(b"x" * 11)
    (tmp_path / "exact.py").write_bytes(b"y" * 10)
    (tmp_path / "tests" / "unread.py").write_bytes(b"z")
    (tmp_path / "notes.txt").write_bytes(b"z")
    corpus = read_corpus(10, tmp_path)
    assert corpus.sequences == (b"first", b"\xff\x00raw", b"y" * 10)
    assert (corpus.num_files, corpus.num_empty, corpus.num_over_long, corpus.num_over_long_tokens) == (5, 1, 1, 11)
    assert "5 standard-library source files = 3 sequences (20 byte tokens) + 1 longer than 10" in corpus.describe()


def test_a_directory_without_usable_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "long.py").write_bytes(b"x" * 11)
    with pytest.raises(ValueError, match=r"none of the 1 Python files .* has from 1 to 10 bytes; raise the maximum"):
        read_corpus(10, tmp_path)


def test_a_corpus_that_loses_a_file_cannot_be_built() -> None:
    with pytest.raises(ValueError, match="3 files were found but 2 accounted for"):
        Corpus(sequences=(b"a",), num_files=3, num_empty=1, num_over_long=0, num_over_long_tokens=0, max_length=10)


@given(
    num_available=st.integers(1, 40),
    num_batches=st.integers(1, 12),
    share=st.floats(0.01, 1.0),
    seed=st.integers(0, 2**31 - 1),
)
@settings(deadline=None)
def test_batches_pass_through_the_corpus_epoch_by_epoch(
    num_available: int, num_batches: int, share: float, seed: int
) -> None:
    """Drawing batches.

    1. Every batch has the size asked for and names sequences that exist.
    2. Concatenated, the batches are permutations of the corpus one after the other, the last one cut.
    3. The same seed draws the same batches.
    """
    size = max(1, int(share * num_available))
    batches = draw_batches(num_available, num_batches=num_batches, num_sequences=size, seed=seed)
    assert [len(batch) for batch in batches] == [size] * num_batches
    stream = [index for batch in batches for index in batch]
    for begin in range(0, len(stream), num_available):
        epoch = stream[begin : begin + num_available]
        assert len(set(epoch)) == len(epoch)
        assert set(epoch) <= set(range(num_available))
    assert batches == draw_batches(num_available, num_batches=num_batches, num_sequences=size, seed=seed)


def test_another_seed_draws_other_batches() -> None:
    first, second = (draw_batches(50, num_batches=2, num_sequences=20, seed=seed) for seed in (0, 1))
    assert first != second


def test_a_batch_larger_than_the_corpus_is_refused() -> None:
    with pytest.raises(ValueError, match="a batch of 6 sequences cannot be drawn from 5"):
        draw_batches(5, num_batches=1, num_sequences=6, seed=0)


@given(batch=st.lists(st.integers(0, 99)), num_sources=st.integers(1, 7))
@settings(deadline=None)
def test_sources_share_a_batch_out_completely(batch: list[int], num_sources: int) -> None:
    """Holding a batch.

    1. Dealing the sources' shares out in turn gives the batch back.
    """
    shares = [held_by(batch, source, num_sources) for source in range(num_sources)]
    dealt = [shares[number % num_sources][number // num_sources] for number in range(len(batch))]
    assert dealt == batch
    assert sum(map(len, shares)) == len(batch)
