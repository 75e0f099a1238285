"""Whether a plan is what it says, recomputed from the batch and the profile alone."""

from collections import Counter
from collections.abc import Mapping, Sequence

from planner_client.contract import LayoutCost, MicroBatch, Plan, Profile, Replica
from planner_service.core.simulate import simulate_1f1b

TOLERANCE = 1e-6
"""Relative difference of times that rounding explains."""


def untruths(plan: Plan, lengths: Sequence[int], profiles: Sequence[Profile]) -> list[str]:
    """Say in which respects a packed plan is not what it claims to be; nothing if it is.

    Parameters
    ----------
    plan
        A plan of `lengths` with no sequence left out.
    lengths
        The batch.
    profiles
        Costs by device.
    """
    found = []
    placed = Counter[int]()
    costs = {(profile.device.name, cost.tp, cost.cp, cost.pp): cost for profile in profiles for cost in profile.layouts}
    for index, replica in enumerate(plan.replicas):
        found += _of_replica(index, replica, costs, plan.alignment)
        for micro_batch in replica.micro_batches:
            for entry in micro_batch.sequences:
                placed[entry.length] += entry.count
    if placed != Counter(lengths):
        found.append(f"it places {placed.total()} sequences, not the batch's {len(lengths)}")
    slowest = max((replica.makespan_ms for replica in plan.replicas), default=0.0)
    if _differ(slowest, plan.makespan_ms):
        found.append(f"its makespan is given as {plan.makespan_ms} ms but its slowest replica takes {slowest}")
    for bound in (plan.lower_bound_ms, plan.all_strategies_lower_bound_ms):
        if bound is not None and bound > plan.makespan_ms * (1 + TOLERANCE):
            found.append(f"its makespan of {plan.makespan_ms} ms lies below its own lower bound of {bound}")
    if plan.method == "hydraulis" and plan.simulated_ms > plan.makespan_ms * (1 + TOLERANCE):
        found.append(f"it runs {plan.simulated_ms} ms under 1F1B, over its closed form of {plan.makespan_ms}")
    return found


def _of_replica(
    index: int, replica: Replica, costs: Mapping[tuple[str, int, int, int], LayoutCost], alignment: int
) -> list[str]:
    cost = costs[replica.device, replica.tp, replica.cp, replica.pp]
    found = []
    times = []
    for position, micro_batch in enumerate(replica.micro_batches):
        tokens = micro_batch.num_tokens + micro_batch.num_padding_tokens
        if tokens > replica.max_tokens:
            found.append(
                f"micro-batch {position} of replica {index} has {tokens} tokens, over the cap of {replica.max_tokens}"
            )
        times.append(_time_ms(micro_batch, cost, alignment))
        if _differ(times[-1], micro_batch.time_ms):
            found.append(
                f"micro-batch {position} of replica {index} takes {times[-1]} ms, not {micro_batch.time_ms} as given"
            )
    closed_form = sum(times) + (replica.pp - 1) * max(times, default=0.0)
    if _differ(closed_form, replica.makespan_ms):
        found.append(f"replica {index} takes {closed_form} ms, not {replica.makespan_ms} as given")
    simulated = simulate_1f1b(replica.pp, times) if times else 0.0
    if _differ(simulated, replica.simulated_ms):
        found.append(f"replica {index} runs {simulated} ms under 1F1B, not {replica.simulated_ms} as given")
    return found


def _time_ms(micro_batch: MicroBatch, cost: LayoutCost, alignment: int) -> float:
    occupied = ((-(-entry.length // alignment) * alignment, entry.count) for entry in micro_batch.sequences)
    return cost.c_ms + sum(
        count * (cost.a_ms_per_token2 * length**2 + cost.b_ms_per_token * length) for length, count in occupied
    )


def _differ(one: float, other: float) -> bool:
    return abs(one - other) > TOLERANCE * max(1.0, abs(one), abs(other))
