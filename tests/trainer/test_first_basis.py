"""What a run starts from where the planner has not made a plan yet."""

from typing import Any

import pytest
from training_runs import PROFILE

from planner_client.contract import PlanOptions, Profile
from planner_client.fallback import FallbackBasis
from worker_agent.trainer.first_basis import first_basis
from worker_agent.trainer.settings import PlannerSettings


def basis(num_ranks: int, profile: Profile | str = PROFILE, **further: Any) -> FallbackBasis | None:
    return first_basis(PlannerSettings("http://127.0.0.1:9", profile, **further), num_ranks)


def limits(found: FallbackBasis | None) -> list[int]:
    assert found is not None
    return [replica.max_tokens for replica in found.replicas]


def test_the_candidate_that_holds_the_longest_sequence_is_taken_with_the_profiles_limits_and_costs() -> None:
    found = basis(4, strategies=("(1,1)x4", "(2,1)x1,(1,1)x2", "(1,2)x2"))
    assert limits(found) == [128, 64, 64]
    assert found is not None
    assert (found.strategy, found.profile, found.num_gpus) == ("(2,1)x1,(1,1)x2", "trainer-test", 4)
    assert [replica.rates.c_ms for replica in found.replicas if replica.rates] == [2.0, 1.0, 1.0]


def test_without_candidates_one_layout_of_the_profile_fills_the_ranks() -> None:
    found = basis(5)
    assert found is not None
    assert found.strategy == "(2,1)x2"
    assert [replica.ranks for replica in found.replicas] == [(0, 1), (2, 3)]
    assert limits(basis(1)) == [64]


def test_the_options_lower_limits_and_choose_layouts() -> None:
    lowered = PlanOptions(max_tokens_per_micro_batch=50)
    assert limits(basis(2, options=lowered)) == [50, 50]
    allowed = PlanOptions.model_validate({"allowed_layouts": [{"tp": 1, "pp": 1}]})
    assert limits(basis(2, options=allowed)) == [64, 64]


def test_with_a_profile_that_the_planner_alone_knows_the_options_tell_the_limit() -> None:
    options = PlanOptions(max_tokens_per_micro_batch=70)
    found = basis(2, "some-profile", strategies=("(1,1)x2",), options=options)
    assert limits(found) == [70, 70]
    assert found is not None
    assert found.profile is None


@pytest.mark.parametrize(
    ("profile", "further"),
    [
        ("some-profile", {}),
        ("some-profile", {"strategies": ("(1,1)x2",)}),
        (PROFILE, {"strategies": ("(4,1)x1",)}),
        (PROFILE, {"strategies": ("(1,1)x3",)}),
        (PROFILE.model_copy(update={"layouts": [PROFILE.layouts[0].model_copy(update={"max_tokens": None})]}), {}),
    ],
)
def test_without_a_limit_known_for_every_replica_there_is_no_start(
    profile: Profile | str, further: dict[str, Any]
) -> None:
    assert basis(2, profile, **further) is None
