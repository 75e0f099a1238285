import pytest
from plan_factory import make_plan

from worker_agent.executor.faults import ExecutionFault, LayoutRefused
from worker_agent.executor.layout import (
    RankRole,
    check_model_fits,
    rank_roles,
    reporting_rank,
    revise_groups,
    stage_layers,
    tensor_groups,
    token_ranks,
)
from worker_agent.executor.shape import DecoderConfig

ONE = [[("rank-0", 4, 1)]]


def test_ranks_without_a_replica_are_idle() -> None:
    plan = make_plan([ONE, []], ranks=[[2], [0]])
    roles = rank_roles(plan, 4)
    assert [role.replica for role in roles] == [1, None, 0, None]
    assert roles[3] == RankRole(3, None)
    assert [role.is_idle for role in rank_roles(plan, 4)] == [False, True, False, True]


def test_a_plan_without_replicas_leaves_every_rank_idle() -> None:
    assert all(role.is_idle for role in rank_roles(make_plan([]), 3))


def test_a_replicas_ranks_are_listed_stage_by_stage_then_by_tensor_parallel_rank() -> None:
    roles = rank_roles(make_plan([ONE], ranks=[[5, 4, 3, 2, 1, 0]], layout=(2, 1, 3)), 6)
    assert roles[3] == RankRole(3, 0, 1, 0, pp=3, tp=2, previous_rank=5, next_rank=1, tensor_ranks=(3, 2))
    assert [(role.stage, role.tp_rank) for role in roles] == [(2, 1), (2, 0), (1, 1), (1, 0), (0, 1), (0, 0)]
    assert (roles[4].previous_rank, roles[0].next_rank) == (None, None)


def test_tensor_parallel_groups_are_listed_by_replica_and_stage_without_idle_replicas() -> None:
    plan = make_plan([ONE, [], ONE], ranks=[[3, 2, 1, 0], [4, 5, 6, 7], [8, 9, 10, 11]], layout=(2, 1, 2))
    assert tensor_groups(plan) == ((3, 2), (1, 0), (8, 9), (10, 11))
    assert tensor_groups(make_plan([ONE], ranks=[[0, 1]], layout=(1, 1, 2))) == ()


def test_the_first_and_the_last_stage_need_tokens_and_the_last_reports() -> None:
    replica = make_plan([ONE], ranks=[[0, 1, 2, 3, 4, 5]], layout=(2, 1, 3)).replicas[0]
    assert token_ranks(replica) == (0, 1, 4, 5)
    assert reporting_rank(replica) == 4
    alone = make_plan([ONE], ranks=[[6, 7]], layout=(2, 1, 1)).replicas[0]
    assert token_ranks(alone) == (6, 7)


def test_layers_are_split_evenly_with_the_odd_ones_first() -> None:
    assert [list(stage_layers(5, 3, stage)) for stage in range(3)] == [[0, 1], [2, 3], [4]]
    assert [len(stage_layers(8, 4, stage)) for stage in range(4)] == [2, 2, 2, 2]


def test_context_parallelism_is_refused_naming_it_and_what_to_take_instead() -> None:
    plan = make_plan([ONE], ranks=[[0, 1, 2, 3]], layout=(2, 2, 1))
    with pytest.raises(LayoutRefused, match=r"\(tp=2, cp=2, pp=1\).*cp=1 only.*allowing tp=4") as refused:
        rank_roles(plan, 4)
    assert isinstance(refused.value, ExecutionFault)


@pytest.mark.parametrize(
    ("layout", "said"),
    [
        ((3, 1, 1), "4 attention heads do not divide by tp=3"),
        ((1, 1, 3), "2 layers cannot fill pp=3 stages"),
        ((4, 1, 1), "3 vocabulary entries cannot be shared by tp=4 ranks"),
    ],
)
def test_a_layout_the_model_cannot_be_cut_into_is_refused_by_name(layout: tuple[int, int, int], said: str) -> None:
    config = DecoderConfig(vocab_size=3, hidden_size=16, num_layers=2, num_heads=4)
    plan = make_plan([ONE], ranks=[list(range(layout[0] * layout[2]))], layout=layout)
    with pytest.raises(LayoutRefused, match=said):
        check_model_fits(plan, config)
    check_model_fits(make_plan([ONE], ranks=[[0, 1, 2, 3]], layout=(2, 1, 2)), config)


def test_a_rank_outside_the_group_is_refused() -> None:
    with pytest.raises(LayoutRefused, match=r"replica 1 .* rank 2 but the group has ranks 0 to 1"):
        rank_roles(make_plan([ONE, []], ranks=[[0], [2]]), 2)


def test_a_rank_placed_twice_is_refused() -> None:
    with pytest.raises(LayoutRefused, match="rank 1 is placed twice, in replicas 0 and 1"):
        rank_roles(make_plan([ONE, []], ranks=[[1], [1]]), 2)


def test_a_replica_with_more_or_fewer_ranks_than_its_layout_needs_is_refused() -> None:
    for ranks in ([], [0, 1]):
        with pytest.raises(LayoutRefused, match=f"lists {len(ranks)} ranks but its layout needs 1"):
            rank_roles(make_plan([ONE], ranks=[ranks]), 2)


def test_groups_are_given_up_only_for_want_of_room_the_longest_unused_first() -> None:
    held = ((0, 1), (2, 3), (4, 5))
    assert revise_groups(held, [(2, 3)], 3) == ((), ())
    assert revise_groups(held, [(6, 7), (2, 3)], 4) == ((), ((6, 7),))
    assert revise_groups(held, [(6, 7), (0, 1), (6, 7)], 3) == (((2, 3),), ((6, 7),))
    assert revise_groups(held, [(6, 7), (8, 9), (1, 2)], 3) == (held, ((6, 7), (8, 9), (1, 2)))


def test_more_groups_at_once_than_the_limit_are_refused() -> None:
    with pytest.raises(LayoutRefused, match=r"needs 2 process groups at once but the limit is 1; raise max_process_"):
        revise_groups((), [(0, 1), (2, 3), (0, 1)], 1)
