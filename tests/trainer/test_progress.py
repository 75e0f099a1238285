"""A position in the data means the same only where the data is read in the same order."""

import json
import re
from typing import Any

import pytest
import torch

from worker_agent.trainer.progress import DataOrder, Progress
from worker_agent.trainer.sampling import DataPosition

MIDDLE, BEGINNING = DataPosition(1, 4), DataPosition(1, 0)
SHUFFLED, IN_ORDER = DataOrder(3, shuffled=True, num_sequences=12), DataOrder(3, shuffled=False, num_sequences=12)


def test_progress_survives_being_written_down() -> None:
    progress = Progress(7, DataPosition(1, 5), "sha256:ab", SHUFFLED)
    assert Progress.of_document(json.loads(json.dumps(progress.document()))) == progress
    assert Progress.of_document(Progress().document()) == Progress()


def test_only_what_can_be_indexed_is_shuffled() -> None:
    data = [torch.arange(3)] * 5
    assert DataOrder.of(data, 2, shuffle=True) == DataOrder(2, shuffled=True, num_sequences=5)
    assert DataOrder.of(data, 2, shuffle=False) == DataOrder(2, shuffled=False, num_sequences=5)
    assert DataOrder.of(iter(data), 2, shuffle=True) == DataOrder(2, shuffled=False, num_sequences=None)


@pytest.mark.parametrize(
    ("written", "own", "message"),
    [
        (SHUFFLED, IN_ORDER, "shuffled and stopped at slot 4 of epoch 1, but this run reads it in its own order"),
        (IN_ORDER, SHUFFLED, "in its own order and stopped at slot 4 .* reads it shuffled; give shuffle=False"),
        (SHUFFLED, DataOrder(3, shuffled=True, num_sequences=13), "order of 12 sequences .* but this run has 13"),
    ],
)
def test_a_position_in_the_middle_of_an_epoch_is_refused_in_another_order(
    written: DataOrder, own: DataOrder, message: str
) -> None:
    assert re.search(message, str(written.difference(own, MIDDLE)))
    assert written.difference(own, BEGINNING) is None
    assert written.difference(written, MIDDLE) is None


def test_another_seed_is_another_order_at_any_place() -> None:
    for position in (MIDDLE, BEGINNING):
        assert "give seed=3" in str(SHUFFLED.difference(DataOrder(4, shuffled=True, num_sequences=12), position))


def test_data_that_is_read_in_its_own_order_may_grow() -> None:
    assert IN_ORDER.difference(DataOrder(3, shuffled=False, num_sequences=99), MIDDLE) is None


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("num_iterations",), -3, "progress.num_iterations is -3, and no count"),
        (("num_iterations",), True, "progress.num_iterations is True, and no count"),
        (("position", "slot"), 1.5, "progress.position.slot is 1.5, and no count"),
        (("position",), None, "progress.position is None, and no object"),
        (("plan_digest",), 5, "progress.plan_digest is 5, and no digest"),
        (("order", "shuffled"), "yes", "progress.order.shuffled is 'yes'"),
        (("order", "num_sequences"), "12", "progress.order.num_sequences is '12'"),
        (("mood",), 1, "progress has an unknown 'mood'"),
    ],
)
def test_what_is_no_progress_is_refused_by_name(path: tuple[str, ...], value: Any, message: str) -> None:
    document = Progress(7, order=SHUFFLED).document()
    place: Any = document
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = value
    with pytest.raises(ValueError, match=message):
        Progress.of_document(document)


def test_progress_that_lacks_something_is_refused_by_name() -> None:
    document = Progress().document()
    del document["position"]
    with pytest.raises(ValueError, match="progress lacks 'position'"):
        Progress.of_document(document)
