import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plan_factory import make_plan, random_plan, reseal

from planner_client.run_order import PlanInconsistent
from planner_client.sequences import resolve
from worker_agent.executor.faults import LayoutRefused
from worker_agent.executor.routes import Leg, RouteTable, sequence_routes

Buffers = list[list[int]]


def all_to_all(sent: Buffers, legs: list[Leg], splits: str) -> Buffers:
    """What a real all-to-all does, checking that both sides of each pair expect the same."""
    received: Buffers = [[] for _ in legs]
    for giver, leg in enumerate(legs):
        bounds = np.cumsum([0, *getattr(leg, f"send_{splits}").tolist()])
        assert bounds[-1] == len(sent[giver])
        for taker, other in enumerate(legs):
            part = sent[giver][bounds[taker] : bounds[taker + 1]]
            assert len(part) == getattr(other, f"receive_{splits}")[giver]
            received[taker] += part
    return received


@given(
    st.lists(st.lists(st.integers(1, 5), max_size=12), min_size=1, max_size=4),
    st.integers(1, 4),
    st.integers(0, 2**32 - 1),
    st.sampled_from([0.0, 0.3]),
    st.sampled_from([(1, 1), (2, 1), (1, 3), (2, 2)]),
)
def test_tokens_arrive_where_the_plan_wants_them_and_results_return_whence_they_came(
    held: list[list[int]], num_replicas: int, seed: int, drop_share: float, layout: tuple[int, int]
) -> None:
    """Hold for any plan, with sources and replicas of any layout on any ranks.

    1. Sent = received for every pair of ranks, in sequences and in tokens.
    2. What a rank of the first or last stage receives, put into run order, fills its micro-batches exactly as the
       resolved plan says; the stages between receive nothing.
    3. The inverse sends every sequence's result to the rank that held it, and nothing else.
    4. The inverse of the inverse is the table itself.
    """
    tp, pp = layout
    world_size = max(len(held), num_replicas * tp * pp)
    draw = np.random.default_rng(seed)
    places = draw.permutation(world_size)
    rank_of_source = {f"node-{number}": int(draw.integers(world_size)) for number in range(len(held))}
    batch = {f"node-{number}": lengths for number, lengths in enumerate(held)}
    cut = np.split(places[: num_replicas * tp * pp], num_replicas)
    plan = random_plan(
        batch, num_replicas, seed, drop_share=drop_share, ranks=[part.tolist() for part in cut], layout=(tp, 1, pp)
    )
    routes = sequence_routes(plan, world_size, rank_of_source)
    assignment = resolve(plan, batch)
    order = [
        (assignment.sources[source_id], index, length)
        for replica in assignment.replicas
        for micro in replica
        for source_id, index, length in zip(
            micro.source_ids.tolist(), micro.indices.tolist(), micro.packed.lengths.tolist(), strict=True
        )
    ]

    legs = [routes.outward.leg(rank) for rank in range(world_size)]
    tokens = [[row for row in leg.sent_rows.tolist() for _ in range(order[row][2])] for leg in legs]
    arrived = all_to_all(tokens, legs, "tokens")
    for rank, leg in enumerate(legs):
        assert all(rank_of_source[order[row][0]] == rank for row in leg.sent_rows.tolist())
        assert arrived[rank] == [row for row in leg.received_rows.tolist() for _ in range(order[row][2])]
    for number, replica in enumerate(assignment.replicas):
        lengths = [length for micro in replica for length in micro.packed.lengths.tolist()]
        begin, end = routes.table.replica_bounds[number : number + 2].tolist()
        for position, rank in enumerate(plan.replicas[number].ranks):
            run = sorted(legs[rank].received_rows.tolist())
            if position // tp in {0, pp - 1}:
                assert [order[row][2] for row in run] == lengths
                assert run == list(range(begin, end))
            else:
                assert run == []

    back = [routes.inward.leg(rank) for rank in range(world_size)]
    returned = all_to_all([leg.sent_rows.tolist() for leg in back], back, "sequences")
    for rank, leg in enumerate(back):
        assert returned[rank] == leg.received_rows.tolist()
        assert sorted(returned[rank]) == [row for row in range(len(order)) if rank_of_source[order[row][0]] == rank]

    again = routes.inward.inverse()
    assert (again.from_rank == routes.outward.from_rank[routes.reports]).all()
    assert (again.to_rank == routes.outward.to_rank[routes.reports]).all()


def test_a_source_that_no_rank_holds_is_refused() -> None:
    plan = make_plan([[[("rank-0", 4, 1), ("node-9", 4, 1)]]])
    with pytest.raises(LayoutRefused, match=r"'node-9' but no rank holds it \(known: rank-0, rank-1\)"):
        sequence_routes(plan, 2)


def test_a_source_held_outside_the_group_is_refused() -> None:
    with pytest.raises(LayoutRefused, match="from rank 5 but the group has ranks 0 to 1"):
        sequence_routes(make_plan([[[("node-9", 4, 1)]]]), 2, {"node-9": 5})


def test_routes_that_do_not_cover_every_sequence_are_refused() -> None:
    with pytest.raises(ValueError, match="1 ranks to send to for 2 deliveries"):
        RouteTable(2, np.array([0, 1]), np.array([0, 1]), np.array([0]), np.array([4, 4]))


def test_a_plan_whose_micro_batches_are_not_filled_exactly_has_no_routes() -> None:
    plan = make_plan([[[("rank-0", 4, 2)]]])
    micro_batch = plan.replicas[0].micro_batches[0].model_copy(update={"num_tokens": 7})
    broken = reseal(plan, replicas=[plan.replicas[0].model_copy(update={"micro_batches": [micro_batch]})])
    with pytest.raises(PlanInconsistent, match="declares 7 tokens but its sequences come to 8"):
        sequence_routes(broken, 1)


def test_what_decides_loads_no_torch() -> None:
    deciding = ("layout", "parameter_routes", "parameters", "parts", "routes", "schedule", "shape")
    modules = ", ".join(f"worker_agent.executor.{module}" for module in deciding)
    script = f"import sys, {modules}\nprint('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "False"
