"""Before planning: which sequences and which candidate strategies can run at all."""

from collections import Counter
from dataclasses import dataclass

from planner_service.core.faults import PlanningFault
from planner_service.core.infeasible import Demand, constraint_fault, group_tokens, occupied, why_infeasible
from planner_service.core.place import place
from planner_service.core.problem import Batch, GroupRow, Options, Problem, SourceRow, Strategy
from planner_service.core.rules import PackingRules, num_process_groups_of

MAX_MICRO_BATCHES = 50_000
"""Most micro-batches that a plan may have to list: a billion tokens in micro-batches of 20,000."""


@dataclass(frozen=True)
class Screened:
    """What is left to plan.

    Attributes
    ----------
    batch
        The sequences to place.
    dropped
        Sequences left out under the policy ``drop``: over-long ones, and all of a group that cannot run whole.
    usable
        Candidates that hold every sequence, in the order given; empty if strategies are to be generated.
    passed_over
        The other candidates, with the reason.
    groups
        Atomic groups to place; their sequences are in ``batch``.
    """

    batch: Batch
    dropped: tuple[SourceRow, ...]
    usable: tuple[Strategy, ...]
    passed_over: tuple[tuple[str, str], ...]
    groups: tuple[GroupRow, ...] = ()


def screen(problem: Problem) -> Screened:
    """Apply the over-long policy and pass over candidates that cannot run the batch.

    Raises
    ------
    PlanningFault
        If a sequence or a group is too long and the policy is ``reject``, no candidate fits the cluster or keeps the
        constraints, or the batch is too large.
    """
    rules = PackingRules.of(problem.options)
    fitting, passed_over = _fitting(problem)
    kinds = [kind for strategy in fitting for kind, _ in strategy.groups] or list(problem.kinds)
    largest = max(kinds, key=lambda kind: kind.max_tokens)
    batch, dropped, groups = _admit(problem, largest.max_tokens, str(largest.layout))
    num_tokens = batch.num_occupied_tokens
    if num_tokens > MAX_MICRO_BATCHES * largest.max_tokens:
        raise _too_large(num_tokens, largest.max_tokens, f"layout {largest.layout}")
    if not problem.candidates and not batch.num_sequences and not rules.idle_allowed:
        raise constraint_fault([("of any kind", "would leave its replicas idle: there are 0 sequences")], 1, 0, rules)
    usable: list[Strategy] = []
    unable: list[tuple[str, str]] = []
    demand = Demand.of(batch, groups, rules)
    for strategy in fitting:
        reason = why_infeasible(strategy, demand, rules)
        if strategy.max_tokens < batch.longest:
            reason = (
                f"holds at most {strategy.max_tokens} tokens a micro-batch "
                f"but the longest sequence takes {batch.longest}"
            )
            passed_over.append((str(strategy), reason))
        elif reason is not None:
            unable.append((str(strategy), reason))
        elif num_tokens > MAX_MICRO_BATCHES * strategy.mean_max_tokens:
            passed_over.append((str(strategy), f"needs more than {MAX_MICRO_BATCHES} micro-batches"))
        else:
            usable.append(strategy)
    if fitting and not usable:
        if unable:
            raise constraint_fault(unable, len(fitting), demand.num_units, rules)
        raise _too_large(num_tokens, int(max(s.mean_max_tokens for s in fitting)), "the best of the candidates")
    return Screened(batch, dropped, tuple(usable), (*passed_over, *unable), groups)


def _fitting(problem: Problem) -> tuple[list[Strategy], list[tuple[str, str]]]:
    """Separate the candidates that can be laid out, and may be, from the others with the reason."""
    fitting: list[Strategy] = []
    too_large: list[tuple[str, str]] = []
    unsuited: list[tuple[str, str]] = []
    for strategy in dict.fromkeys(problem.candidates):
        if strategy.num_ranks > problem.num_gpus:
            too_large.append((str(strategy), f"takes {strategy.num_ranks} GPUs of {problem.num_gpus}"))
        elif place(strategy.replicas, problem.pools) is None:
            too_large.append((str(strategy), "cannot be laid out on " + problem.cluster))
        elif (reason := _unsuited(strategy, problem.options)) is not None:
            unsuited.append((str(strategy), reason))
        else:
            fitting.append(strategy)
    if problem.candidates and not fitting:
        if unsuited:
            num_sequences = problem.batch.num_sequences
            raise constraint_fault(unsuited, len(unsuited), num_sequences, PackingRules.of(problem.options))
        name, reason = too_large[0]
        more = f" (and {len(too_large) - 1} more)" if len(too_large) > 1 else ""
        raise PlanningFault(
            "strategy-too-large",
            f"no candidate strategy fits the cluster: {name} {reason}{more}",
            f"use at most {problem.num_gpus} GPUs or raise num_gpus",
            num_gpus=problem.num_gpus,
        )
    return fitting, too_large + unsuited


def _unsuited(strategy: Strategy, options: Options) -> str | None:
    """Say which option a strategy does not meet, whatever the batch."""
    if options.homogeneous and len(strategy.groups) > 1:
        return f"has replicas of {len(strategy.groups)} kinds but homogeneous ones were asked for"
    needed = num_process_groups_of(strategy)
    if options.max_process_groups is not None and needed > options.max_process_groups:
        return f"needs {needed} process groups but at most {options.max_process_groups} are allowed"
    return None


def _admit(
    problem: Problem, max_occupied: int, layout: str
) -> tuple[Batch, tuple[SourceRow, ...], tuple[GroupRow, ...]]:
    """Apply the over-long policy: the batch and the groups to place, and what is dropped."""
    options, alignment = problem.options, problem.batch.alignment
    max_true = options.max_length if options.max_length is not None else max_occupied
    _, over_long = problem.batch.split(max_true, max_occupied)
    if over_long and options.over_long != "drop":
        raise _too_long(problem, over_long, max_occupied, layout)
    kept: list[GroupRow] = []
    lost: Counter[tuple[str, int]] = Counter()
    for row in over_long:
        lost[row.source, row.length] += row.count
    too_long = set(lost)
    for group in problem.groups:
        whole = group_tokens(group, alignment, is_padded=options.is_padded)
        has_over_long = any((group.source, length) in too_long for length in group.lengths)
        if not has_over_long and whole <= max_occupied:
            kept.append(group)
            continue
        if options.over_long != "drop":
            raise _group_too_large(group, whole, max_occupied, layout)
        for length in group.lengths:
            if (group.source, length) not in too_long:
                lost[group.source, length] += group.count
    batch, dropped = _without(problem.batch, lost)
    return batch, dropped, tuple(kept)


def _without(batch: Batch, lost: Counter[tuple[str, int]]) -> tuple[Batch, tuple[SourceRow, ...]]:
    """Take sequences out of a batch, counted by source and true length."""
    remaining: list[SourceRow] = []
    dropped: list[SourceRow] = []
    for row in batch.rows:
        gone = min(row.count, lost[row.source, row.length])
        lost[row.source, row.length] -= gone
        if gone:
            dropped.append(SourceRow(row.source, row.length, gone))
        if row.count > gone:
            remaining.append(SourceRow(row.source, row.length, row.count - gone))
    return Batch(tuple(remaining), batch.alignment), tuple(dropped)


def _too_long(problem: Problem, over_long: tuple[SourceRow, ...], max_occupied: int, layout: str) -> PlanningFault:
    options, alignment = problem.options, problem.batch.alignment
    longest = max(over_long, key=lambda row: row.length)
    num_over = sum(row.count for row in over_long)
    if options.max_length is not None and longest.length > options.max_length:
        limit, whose = options.max_length, "the max_length of the request"
    else:
        limit, whose = max_occupied, f"the largest micro-batch any layout holds, {layout}'s"
        if options.lowered_max_tokens is not None and max_occupied + alignment > options.lowered_max_tokens:
            whose = f"what max_tokens_per_micro_batch={options.lowered_max_tokens} leaves of the layouts' limits"
    aligned = f" ({occupied(longest.length, alignment)} once aligned)"
    return PlanningFault(
        "sequence-too-long",
        f"{num_over} sequence(s) are too long: {longest.source} has one of {longest.length} tokens"
        f"{aligned if alignment > 1 else ''} but the limit is {limit}, {whose}",
        "leave such sequences out, set over_long to drop, or offer a layout with a larger limit",
        length=longest.length,
        limit=limit,
        layout=layout,
        num_over_long=num_over,
    )


def _group_too_large(group: GroupRow, num_tokens: int, max_occupied: int, layout: str) -> PlanningFault:
    return PlanningFault(
        "constraint-infeasible",
        f"an atomic group of {group.source} with {len(group.lengths)} sequences takes {num_tokens} tokens in one "
        f"micro-batch but the limit is {max_occupied}, the largest micro-batch any layout holds, {layout}'s",
        "split the group, set over_long to drop, or offer a layout with a larger limit",
        source=group.source,
        num_tokens=num_tokens,
        limit=max_occupied,
        layout=layout,
    )


def _too_large(num_tokens: int, max_tokens: int, whose: str) -> PlanningFault:
    return PlanningFault(
        "batch-too-large",
        f"the batch has {num_tokens} tokens, more than {MAX_MICRO_BATCHES} micro-batches of {max_tokens} tokens hold, "
        f"the limit of {whose}",
        "plan a smaller global batch, or offer layouts with larger limits",
        num_tokens=num_tokens,
        limit=MAX_MICRO_BATCHES * max_tokens,
    )
