import pytest
from core_cases import published

from planner_client.contract import OptimizerLayout, PlanOptions, PlanRequest
from planner_service.core.cost import micro_batch_ms
from planner_service.core.faults import PlanningFault
from planner_service.profiles import builtin_profiles
from planner_service.translate import plan_request, refuse_unusable, replica_kinds

SHARDED_4_16_1 = (4, 16, 1)


@pytest.mark.parametrize(
    ("layout", "limit"),
    [((4, 1), 7808), ((4, 2), 12416), ((8, 1), 21888), ((8, 3), 27264), ((8, 4), 27904), ((16, 1), 43520)],
)
def test_published_32b_limits_come_out_as_published(layout: tuple[int, int], limit: int) -> None:
    assert published("llama-32b-a800-80g", 64, SHARDED_4_16_1)[layout].max_tokens == limit


@pytest.mark.parametrize(
    ("layout", "times"),
    [((4, 1), (369, 2338, 12107)), ((8, 1), (270, 1424, 7039)), ((16, 1), (252, 1077, 4982))],
)
def test_published_32b_micro_batch_times_come_out_as_published(layout: tuple[int, int], times: tuple[int, ...]) -> None:
    kind = published("llama-32b-a800-80g", 64, SHARDED_4_16_1)[layout]
    assert tuple(round(micro_batch_ms(kind, [(length, 1)])) for length in (1024, 8192, 32768)) == times


def test_layouts_without_a_positive_limit_are_set_apart() -> None:
    _, without_room = replica_kinds(builtin_profiles()["llama-32b-a800-80g"], 64, OptimizerLayout(dp=4, tp=16, pp=1))
    assert sorted((layout.tp, layout.pp) for layout in without_room) == [(1, 2), (2, 1)]
    assert all(limit <= 0 for limit in without_room.values())


@pytest.mark.parametrize("layout", [{"tp": 1, "pp": 2}, {"tp": 2, "pp": 1}])
def test_a_strategy_with_a_layout_that_cannot_run_is_refused_by_name(layout: dict[str, int]) -> None:
    request = PlanRequest.model_validate(
        {
            "profile": "llama-32b-a800-80g",
            "num_gpus": 64,
            "strategies": [[{**layout, "num_replicas": 2}]],
            "lengths": [100],
        }
    )
    with pytest.raises(PlanningFault) as refused:
        plan_request(request, [builtin_profiles()["llama-32b-a800-80g"]], remaining_ms=lambda: 1e9)
    assert refused.value.code == "layout-without-memory"
    assert f"({layout['tp']},{layout['pp']})" in refused.value.detail


def test_a_profile_with_a_layout_that_can_never_run_is_refused_naming_it() -> None:
    with pytest.raises(PlanningFault) as refused:
        refuse_unusable(builtin_profiles()["llama-32b-a800-80g"])
    assert refused.value.code == "layout-without-memory"
    assert "(1,2)" in refused.value.detail


def test_every_built_in_profile_names_its_source_and_runs_on_64_gpus() -> None:
    profiles = builtin_profiles()
    assert sorted(profiles) == [
        "llama-13b-a800-80g",
        "llama-32b-a800-80g",
        "llama-7b-a100-40g",
        "llama-7b-a800-80g",
    ]
    for profile in profiles.values():
        assert "2412.07894" in profile.source
        assert profile.sync_ms == 0
        kinds, _ = replica_kinds(profile, 64)
        assert kinds


def test_an_optimizer_layout_that_does_not_cover_the_gpus_is_refused() -> None:
    with pytest.raises(PlanningFault) as refused:
        replica_kinds(builtin_profiles()["llama-7b-a800-80g"], 64, OptimizerLayout(dp=4, tp=8, pp=1))
    assert refused.value.code == "optimizer-layout-mismatch"
    assert "32" in refused.value.detail
    assert "64" in refused.value.detail


def test_limits_are_floored_to_the_alignment() -> None:
    kinds, _ = replica_kinds(builtin_profiles()["llama-7b-a800-80g"], 64, None, PlanOptions(alignment=1000))
    plain, _ = replica_kinds(builtin_profiles()["llama-7b-a800-80g"], 64)
    for layout, kind in kinds.items():
        assert kind.max_tokens == plain[layout].max_tokens // 1000 * 1000
