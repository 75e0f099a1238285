import pytest
from plan_factory import make_plan

from worker_agent.executor.faults import ExecutionFault, LayoutRefused
from worker_agent.executor.layout import RankRole, rank_roles

ONE = [[("rank-0", 4, 1)]]


def test_ranks_without_a_replica_are_idle() -> None:
    plan = make_plan([ONE, []], ranks=[[2], [0]])
    assert rank_roles(plan, 4) == (RankRole(0, 1), RankRole(1, None), RankRole(2, 0), RankRole(3, None))
    assert [role.is_idle for role in rank_roles(plan, 4)] == [False, True, False, True]


def test_a_plan_without_replicas_leaves_every_rank_idle() -> None:
    assert all(role.is_idle for role in rank_roles(make_plan([]), 3))


@pytest.mark.parametrize("layout", [(2, 1, 1), (1, 2, 1), (1, 1, 2)])
def test_a_layout_that_does_not_run_is_refused_naming_it_and_what_runs(layout: tuple[int, int, int]) -> None:
    plan = make_plan([ONE], ranks=[[0, 1]], layout=layout)
    tp, cp, pp = layout
    with pytest.raises(LayoutRefused, match=rf"\(tp={tp}, cp={cp}, pp={pp}\).*tp=1, cp=1, pp=1") as refused:
        rank_roles(plan, 2)
    assert isinstance(refused.value, ExecutionFault)


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
