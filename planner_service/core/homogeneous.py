"""Strategies whose replicas are all of one kind: what the search over all strategies starts from."""

from planner_service.core.faults import PlanningFault
from planner_service.core.infeasible import Demand
from planner_service.core.place import most_placeable
from planner_service.core.problem import Problem, ReplicaKind, Strategy
from planner_service.core.rules import PackingRules, num_process_groups, num_process_groups_of
from planner_service.core.screen import MAX_MICRO_BATCHES, Screened


def keeps_group_limit(strategy: Strategy, max_process_groups: int | None) -> bool:
    """Whether a strategy needs no more process groups than a job may hold."""
    if max_process_groups is None:
        return True
    return num_process_groups_of(strategy) <= max_process_groups


def _most_replicas(kind: ReplicaKind, problem: Problem, demand: Demand, rules: PackingRules) -> int:
    most = most_placeable(kind, problem.pools)
    if problem.options.max_process_groups is not None and num_process_groups(kind.layout):
        most = min(most, problem.options.max_process_groups // num_process_groups(kind.layout))
    if demand.num_units and not rules.may_idle:
        most = min(most, demand.num_units // rules.permitted(kind.pp))
    return most


def homogeneous(problem: Problem, screened: Screened) -> list[Strategy]:
    """List homogeneous strategies that hold the batch, of as many replicas as may be, smallest replicas first.

    Raises
    ------
    PlanningFault
        If there are none.
    """
    batch = screened.batch
    rules = PackingRules.of(problem.options)
    demand = Demand.of(batch, screened.groups, rules)
    strategies: list[Strategy] = []
    for kind in sorted(problem.kinds, key=lambda kind: (kind.num_ranks, kind.layout, kind.device)):
        if demand.most_tokens <= kind.max_tokens and batch.num_occupied_tokens <= MAX_MICRO_BATCHES * kind.max_tokens:
            num_replicas = _most_replicas(kind, problem, demand, rules)
            if num_replicas > 0:
                strategies.append(Strategy.of([(kind, num_replicas)]))
    if strategies:
        return strategies
    constraints = [] if rules.is_free else [str(rules)]
    if problem.options.max_process_groups is not None:
        constraints.append(f"at most {problem.options.max_process_groups} process groups")
    under = f" under the constraints given ({', '.join(constraints)})" if constraints else ""
    raise PlanningFault(
        "constraint-infeasible" if constraints else "no-usable-strategy",
        f"no layout that holds {demand.what}, the longest of {batch.longest} tokens, can be placed on "
        f"{problem.cluster}{under}",
        "use more GPUs, or layouts whose tensor-parallel groups fit into nodes"
        + (", or fewer constraints" if constraints else ""),
        num_gpus=problem.num_gpus,
    )
