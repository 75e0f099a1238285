"""Clusters that say which ranks are of which type: what plans do with it, what is refused, what the client checks."""

from typing import Any

import pytest
from pydantic import ValidationError

from planner_client.contract import Plan, PlanRequest, Profile
from planner_client.errors import BadAnswer
from planner_client.plan_check import check_answers
from planner_service.core.faults import PlanningFault
from planner_service.translate import plan_request

LAYOUTS = [
    {"tp": tp, "pp": 1, "a_ms_per_token2": 4e-5, "b_ms_per_token": 0.05 / tp, "c_ms": 3.0, "max_tokens": 900 * tp}
    for tp in (1, 2, 4)
]


def profile(name: str, slower: float = 1.0) -> Profile:
    layouts = [{**layout, "b_ms_per_token": slower * layout["b_ms_per_token"]} for layout in LAYOUTS]
    model = {"name": "m", "num_layers": 2, "hidden_size": 8, "vocab_size": 32}
    device = {"name": name, "memory_bytes": 2**30, "gpus_per_node": 4}
    return Profile.model_validate(
        {"name": f"m-{name}", "source": "a test", "model": model, "device": device, "layouts": layouts}
    )


FAST, SLOW = profile("fast"), profile("slow", 2.0)


def request(fast: list[list[int]] | None, slow: list[list[int]] | None, **changes: Any) -> PlanRequest:
    pools = [
        {"profile": own, "num_gpus": sum(map(len, nodes)) if nodes else 4, "nodes": nodes}
        for own, nodes in ((FAST, fast), (SLOW, slow))
    ]
    lengths = [37 * number % 800 + 20 for number in range(60)]
    return PlanRequest.model_validate({"devices": pools, "lengths": lengths, **changes})


def planned(asked: PlanRequest) -> Plan:
    plan = plan_request(asked, [FAST, SLOW], remaining_ms=lambda: 1e6)
    return check_answers(plan, asked)


def test_replicas_run_on_the_ranks_of_their_type_and_inside_its_nodes() -> None:
    fast, slow = [[0, 1, 3], [5, 6, 7]], [[2], [4]]
    plan = planned(request(fast, slow))
    ranks = {
        device: sorted(rank for own in plan.replicas if own.device == device for rank in own.ranks)
        for device in ("fast", "slow")
    }
    assert set(ranks["fast"]) <= {0, 1, 3, 5, 6, 7}
    assert set(ranks["slow"]) <= {2, 4}
    assert ranks["slow"]
    for replica in plan.replicas:
        nodes = fast if replica.device == "fast" else slow
        assert any(set(replica.ranks) <= set(node) for node in nodes)


def test_a_strategy_that_the_nodes_cannot_hold_is_passed_over() -> None:
    asked = request(
        [[0, 1, 3], [5, 6, 7]],
        [[2], [4]],
        strategies=[
            [{"tp": 4, "pp": 1, "num_replicas": 1, "device": "fast"}],
            [{"tp": 2, "pp": 1, "num_replicas": 2, "device": "fast"}],
        ],
    )
    plan = planned(asked)
    assert plan.strategy == "(2,1)x2"
    assert [passed.strategy for passed in plan.passed_over] == ["(4,1)x1"]


def test_numbering_type_by_type_can_be_said_in_so_many_words() -> None:
    counted = planned(request(None, None))
    named = planned(request([[0, 1, 2, 3]], [[4, 5, 6, 7]]))
    assert named.digest == counted.digest


@pytest.mark.parametrize(
    ("fast", "slow", "said"),
    [
        ([[0, 1, 2, 3]], None, "1 of 2 devices name their ranks"),
        ([[0, 1, 2, 3]], [[4, 5, 6, 6]], "name rank 6 twice"),
        ([[0, 1, 2, 3]], [[4, 5, 6, 8]], "name rank 8 of 8 GPUs"),
        ([[0, 1, 2, -3]], [[4, 5, 6, 7]], "greater than or equal to 0"),
        ([[0, 1, 2, 3], []], [[4, 5, 6, 7]], "at least 1 item"),
    ],
)
def test_nodes_that_do_not_have_every_rank_once_are_refused(
    fast: list[list[int]], slow: list[list[int]] | None, said: str
) -> None:
    with pytest.raises(ValidationError, match=said):
        request(fast, slow)


def test_nodes_that_are_not_as_many_gpus_as_there_are_said_to_be_are_refused() -> None:
    with pytest.raises(ValidationError, match="nodes has 2 ranks but num_gpus is 3"):
        PlanRequest.model_validate({"devices": [{"profile": "p", "num_gpus": 3, "nodes": [[0, 1]]}], "lengths": [1]})


def test_a_node_with_more_ranks_than_the_profile_has_gpus_on_it_is_refused() -> None:
    asked = request([[0, 1, 2, 3, 8]], [[4, 5, 6, 7]])
    with pytest.raises(PlanningFault, match="a node of fast 5 ranks but its profile says 4 GPUs"):
        plan_request(asked, [FAST, SLOW], remaining_ms=lambda: 1e6)


@pytest.mark.parametrize(
    ("index", "ranks", "said"),
    [
        pytest.param(0, "swapped", "but has ranks of", id="of the other type"),
        pytest.param(0, "mixed", "has ranks of 2 types of GPU", id="of both types"),
    ],
)
def test_the_client_refuses_a_plan_whose_replicas_are_not_on_their_type(index: int, ranks: str, said: str) -> None:
    asked = request(
        [[0, 1, 4, 5]],
        [[2, 3, 6, 7]],
        strategies=[[{"tp": 2, "pp": 1, "num_replicas": 2, "device": own} for own in ("fast", "slow")]],
    )
    plan = planned(asked)
    mine = plan.replicas[index]
    number, other = next((n, own) for n, own in enumerate(plan.replicas) if own.device != mine.device)
    first = other.ranks if ranks == "swapped" else [other.ranks[0], mine.ranks[1]]
    second = mine.ranks if ranks == "swapped" else [mine.ranks[0], other.ranks[1]]
    replicas = list(plan.replicas)
    replicas[index] = mine.model_copy(update={"ranks": first})
    replicas[number] = other.model_copy(update={"ranks": second})
    fields = {name: getattr(plan, name) for name in Plan.model_fields if name != "digest"}
    with pytest.raises(BadAnswer, match=said):
        check_answers(Plan.seal(**{**fields, "replicas": replicas}), asked)
