"""The comparison with training in one process notices what it is there to notice."""

from dataclasses import replace

import pytest
from deliberate_faults import MISTAKES, train_with_mistakes
from random_training import SEED, draw_training
from rank_group import RankEnd, run_ranks
from training_reference import Course, differences, train_by_reference

STRATEGIES = ("(2,1)x2", "(2,1)x2", "(2,2)x1", "(1,3)x1,(1,1)x1")
TIED_WITH_ONE_KEY_VALUE_HEAD = 1


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[RankEnd], Course]:
    drawn = draw_training(4, TIED_WITH_ONE_KEY_VALUE_HEAD, len(STRATEGIES), STRATEGIES)
    training = replace(drawn, max_norm=0.05)
    batches = [training.trained_on(iteration) for iteration in range(len(STRATEGIES))]
    expected = train_by_reference(training.config, SEED, batches, training.max_norm)
    assert max(expected.norms) > training.max_norm, "nothing would be clipped"
    return run_ranks(train_with_mistakes, 4, tmp_path_factory.mktemp("ranks"), training, limit_s=100), expected


def test_an_honest_run_agrees(ends: tuple[list[RankEnd], Course]) -> None:
    ranks, expected = ends
    for end in ranks:
        assert end.raised is None, end.raised
        assert differences(end.returned[None], expected) == []


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_noticed_or_refused(ends: tuple[list[RankEnd], Course], mistake: str) -> None:
    ranks, expected = ends
    for end in ranks:
        found = end.returned[mistake]
        assert isinstance(found, str) or differences(found, expected), f"nothing shows that {mistake}"
