"""Before planning: which sequences and which candidate strategies can run at all."""

from dataclasses import dataclass

from planner_service.core.faults import PlanningFault
from planner_service.core.place import place
from planner_service.core.problem import Batch, Problem, SourceRow, Strategy

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
        Over-long sequences left out under the policy ``drop``.
    usable
        Candidates that hold every sequence, in the order given; empty if strategies are to be generated.
    passed_over
        The other candidates, with the reason.
    """

    batch: Batch
    dropped: tuple[SourceRow, ...]
    usable: tuple[Strategy, ...]
    passed_over: tuple[tuple[str, str], ...]


def screen(problem: Problem) -> Screened:
    """Apply the over-long policy and pass over candidates that cannot run the batch.

    Raises
    ------
    PlanningFault
        If a sequence is too long and the policy is ``reject``, no candidate fits the cluster, or the batch is too
        large.
    """
    fitting, passed_over = _fitting(problem)
    if problem.candidates and not fitting:
        name, reason = passed_over[0]
        more = f" (and {len(passed_over) - 1} more)" if len(passed_over) > 1 else ""
        raise PlanningFault(
            "strategy-too-large",
            f"no candidate strategy fits the cluster: {name} {reason}{more}",
            f"use at most {problem.num_gpus} GPUs or raise num_gpus",
            num_gpus=problem.num_gpus,
        )
    kinds = [kind for strategy in fitting for kind, _ in strategy.groups] or list(problem.kinds)
    largest = max(kinds, key=lambda kind: kind.max_tokens)
    batch, dropped = _admit(problem, largest.max_tokens, str(largest.layout))
    num_tokens = batch.num_occupied_tokens
    if num_tokens > MAX_MICRO_BATCHES * largest.max_tokens:
        raise _too_large(num_tokens, largest.max_tokens, f"layout {largest.layout}")
    usable: list[Strategy] = []
    for strategy in fitting:
        if strategy.max_tokens < batch.longest:
            reason = (
                f"holds at most {strategy.max_tokens} tokens a micro-batch "
                f"but the longest sequence takes {batch.longest}"
            )
            passed_over.append((str(strategy), reason))
        elif num_tokens > MAX_MICRO_BATCHES * strategy.mean_max_tokens:
            passed_over.append((str(strategy), f"needs more than {MAX_MICRO_BATCHES} micro-batches"))
        else:
            usable.append(strategy)
    if fitting and not usable:
        raise _too_large(num_tokens, int(max(s.mean_max_tokens for s in fitting)), "the best of the candidates")
    return Screened(batch, dropped, tuple(usable), tuple(passed_over))


def _fitting(problem: Problem) -> tuple[list[Strategy], list[tuple[str, str]]]:
    fitting: list[Strategy] = []
    passed_over: list[tuple[str, str]] = []
    for strategy in dict.fromkeys(problem.candidates):
        if strategy.num_ranks > problem.num_gpus:
            passed_over.append((str(strategy), f"takes {strategy.num_ranks} GPUs of {problem.num_gpus}"))
        elif place(strategy.replicas, problem.num_gpus, problem.gpus_per_node) is None:
            passed_over.append(
                (
                    str(strategy),
                    f"has tensor-parallel groups that do not fit into nodes of {problem.gpus_per_node} GPUs",
                )
            )
        else:
            fitting.append(strategy)
    return fitting, passed_over


def _admit(problem: Problem, max_occupied: int, layout: str) -> tuple[Batch, tuple[SourceRow, ...]]:
    options = problem.options
    max_true = options.max_length if options.max_length is not None else max_occupied
    batch, over_long = problem.batch.split(max_true, max_occupied)
    if not over_long or options.over_long == "drop":
        return batch, over_long
    longest = max(over_long, key=lambda row: row.length)
    num_over = sum(row.count for row in over_long)
    if options.max_length is not None and longest.length > options.max_length:
        limit, whose = options.max_length, "the max_length of the request"
    else:
        limit, whose = max_occupied, f"the largest micro-batch any layout holds, {layout}'s"
    aligned = f" ({-(-longest.length // problem.batch.alignment) * problem.batch.alignment} once aligned)"
    raise PlanningFault(
        "sequence-too-long",
        f"{num_over} sequence(s) are too long: {longest.source} has one of {longest.length} tokens"
        f"{aligned if problem.batch.alignment > 1 else ''} but the limit is {limit}, {whose}",
        "leave such sequences out, set over_long to drop, or offer a layout with a larger limit",
        length=longest.length,
        limit=limit,
        layout=layout,
        num_over_long=num_over,
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
