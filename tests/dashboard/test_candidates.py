"""What is said of candidate strategies: bounds that hold, and why each was chosen or not."""

from itertools import pairwise
from typing import Any

import pytest

from planner_client.contract import PlanRequest, parse_strategy
from planner_service.dashboard.candidates import candidates_of, placed_lengths
from planner_service.profiles import builtin_profiles
from planner_service.translate import plan_request
from planner_service.translate.candidates import candidate_bounds

PROFILE = builtin_profiles()["llama-32b-a800-80g"]
STRATEGIES = ["(16,1)x4", "(16,1)x1,(8,1)x6", "(16,1)x1,(8,2)x3", "(4,1)x16"]
LENGTHS = [30_000, 12_000, 9000, *range(300, 3000, 90)]


def planned(*strategies: str, lengths: list[int] = LENGTHS) -> tuple[PlanRequest, dict[str, Any]]:
    request = PlanRequest.model_validate(
        {
            "profile": PROFILE.name,
            "num_gpus": 64,
            "strategies": [parse_strategy(text) for text in strategies],
            "lengths": lengths,
        }
    )
    return request, dict(plan_request(request, [PROFILE], remaining_ms=lambda: 3000.0).model_dump())


def test_no_plan_on_a_candidate_is_faster_than_its_bound() -> None:
    request, plan = planned(*STRATEGIES)
    bounds = candidate_bounds(request, [PROFILE])
    assert set(bounds) == set(STRATEGIES[:3])
    for strategy, bound_ms in bounds.items():
        _, alone = planned(strategy)
        assert 0 < bound_ms <= alone["makespan_ms"] * (1 + 1e-9)
    told = candidates_of(plan, bounds).candidates
    assert [each.is_chosen for each in told] == [True, False, False, False]
    assert told[0].strategy == plan["strategy"]
    assert told[0].lower_bound_ms == pytest.approx(plan["lower_bound_ms"])
    lost = [each.lower_bound_ms for each in told[1:3]]
    assert all(one <= other for one, other in pairwise(lost))  # type: ignore[operator]
    assert (told[3].strategy, told[3].lower_bound_ms) == ("(4,1)x16", None)
    assert "longest sequence" in str(told[3].reason)


def test_the_lengths_of_a_plan_are_those_that_were_asked_for() -> None:
    _, plan = planned("(16,1)x4", lengths=[512, 512, 700, 30_000])
    placed = placed_lengths(plan)
    assert dict(zip(placed.lengths, placed.counts, strict=True)) == {512: 2, 700: 1, 30_000: 1}
