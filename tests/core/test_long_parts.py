from core_cases import NO_HURRY, batches, problem_for, published, solved, stream

from planner_service.core.dispatch import long_parts, longest_first, pack_all
from planner_service.core.items import Workload, items_of
from planner_service.core.problem import Strategy


def test_a_long_part_holds_all_items_over_a_limit_and_all_replicas_over_it() -> None:
    kinds = published("llama-32b-a800-80g", 1024)
    strategy = Strategy.of([(kinds[16, 1], 1), (kinds[8, 1], 3), (kinds[4, 4], 2), (kinds[4, 1], 238)])
    batch = problem_for(next(batches(stream("github"), 1_600_000)), [strategy]).batch
    work = Workload.of(items_of(batch, 100), tuple(kind for kind, _ in strategy.groups))
    dispatched = pack_all(strategy, work, longest_first(strategy, work))
    parts = list(long_parts(dispatched, work))
    assert [len(part.replicas) for part in parts] == [6, 4]  # all but (4,1); (16,1) and (8,1)
    limits = (kinds[4, 1].max_tokens, kinds[4, 4].max_tokens)
    for part, limit in zip(parts, limits, strict=True):
        assert all(longest > limit for longest in part.work.items.longest)
        assert sum(longest > limit for longest in work.items.longest) == part.num_items
        held = {item for packing in part.dispatched.packings for items in packing.micro_batches for item in items}
        assert held == set(range(part.num_items))


def test_cp_sat_proves_the_bottleneck_of_few_replicas_for_long_sequences() -> None:
    kinds = published("llama-32b-a800-80g", 1024)
    strategy = Strategy.of([(kinds[16, 1], 1), (kinds[8, 1], 3), (kinds[4, 4], 2), (kinds[4, 1], 238)])
    lengths = list(batches(stream("github"), 1_600_000))[2]
    solution = solved(problem_for(lengths, [strategy], num_gpus=1024), NO_HURRY)
    assert solution.solved_by == "cp-sat"
    assert solution.makespan_ms / solution.lower_bound_ms < 1.03
