from pathlib import Path

import pytest
from machines import make_settings, noise_of, run_all

from worker_agent.profiler import Journal, JournalRefused
from worker_agent.profiler.records import Collective, CollectiveRecord, Record

SETTINGS = make_settings("1x1", num_ranks=2, num_memory_levels=2)
RECORDS: tuple[Record, ...] = (
    *run_all(SETTINGS, noise_of(0.01)).records,
    CollectiveRecord(collective=Collective(kind="all-reduce", num_ranks=2, num_bytes=1024), time_ms=0.25),
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "measured.journal"
    with Journal(path, SETTINGS) as journal:
        assert journal.records == ()
        for record in RECORDS:
            journal.append(record)
    return path


def test_a_journal_gives_back_what_was_kept(path: Path) -> None:
    with Journal(path, SETTINGS) as journal:
        assert journal.records == RECORDS


def test_a_journal_of_no_more_use_is_deleted(path: Path) -> None:
    Journal(path, SETTINGS).close(discard=True)
    assert not path.exists()


def test_a_journal_cut_off_anywhere_keeps_whole_records_only(path: Path) -> None:
    content = path.read_bytes()
    for end in range(0, len(content), 97):
        path.write_bytes(content[:end])
        with Journal(path, SETTINGS) as journal:
            assert journal.records == RECORDS[: max(0, content[:end].count(b"\n") - 1)]
            journal.append(RECORDS[-1])
        with Journal(path, SETTINGS) as journal:
            assert journal.records[-1] == RECORDS[-1]


def test_a_journal_changed_anywhere_is_refused(path: Path) -> None:
    content = path.read_bytes()
    for place in range(0, len(content) - 1, 101):
        changed = bytearray(content)
        changed[place] ^= 1
        if content[place] == ord("\n") or changed[place] == ord("\n"):
            continue
        path.write_bytes(changed)
        with pytest.raises(JournalRefused, match=r"is damaged, or no journal: line \d+ .* delete the file"):
            Journal(path, SETTINGS)
    assert path.read_bytes() == bytes(changed)  # what is refused is left alone


def test_a_file_that_is_no_journal_is_refused_and_left_alone(path: Path) -> None:
    for text in (
        "dear diary",
        "dear diary\n",
        "{}\n",
        "diary",
        "abc",
        "\n",
        "dear\ndiary",
        "dear diary\nwithout an end",
    ):
        path.write_text(text)
        with pytest.raises(JournalRefused, match="no journal"):
            Journal(path, SETTINGS)
        assert path.read_text() == text


def test_the_journal_of_another_measurement_is_refused_and_says_what_differs(path: Path) -> None:
    other = make_settings("1x1", num_ranks=2, num_memory_levels=2, max_tokens=1024)
    with pytest.raises(JournalRefused, match="max_tokens was 512 and is 1024") as caught:
        Journal(path, other)
    assert "num_ranks" not in str(caught.value)


def test_what_a_refused_journal_ends_with_is_left_alone(path: Path) -> None:
    cut = path.read_bytes()[:-5]
    path.write_bytes(cut)
    with pytest.raises(JournalRefused, match="of another measurement"):
        Journal(path, make_settings("1x1", num_ranks=2, num_memory_levels=2, max_tokens=1024))
    assert path.read_bytes() == cut


def test_another_time_limit_is_the_same_measurement(path: Path) -> None:
    longer = make_settings("1x1", num_ranks=2, num_memory_levels=2, timeout_s=999.0)
    with Journal(path, longer) as journal:
        assert journal.records == RECORDS


def test_a_journal_has_one_writer(path: Path) -> None:
    with Journal(path, SETTINGS), pytest.raises(JournalRefused, match="another process"):
        Journal(path, SETTINGS)
