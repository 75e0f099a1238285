"""The independent validator: checks a solution against the problem from first principles.

It shares no code with the search: times, tokens, placement and conservation are recomputed here from the formulas.
Every plan passes it before it leaves.
"""

from collections import Counter
from collections.abc import Iterator

from planner_service.core.problem import Problem
from planner_service.core.solution import PlannedMicroBatch, PlannedReplica, Solution

RELATIVE_ERROR = 1e-6
"""Figures may differ from recomputed ones by this share, for the order of floating-point sums."""


class InvalidSolution(AssertionError):  # noqa: N818 - names what it holds
    """A solution that breaks a rule: always a defect of the planner, never of the request."""


def check(problem: Problem, solution: Solution) -> None:
    """Raise if the solution breaks any rule.

    Raises
    ------
    InvalidSolution
        Naming every broken rule (at most ten).
    """
    broken = []
    for rule in violations(problem, solution):
        broken.append(rule)
        if len(broken) == 10:
            break
    if broken:
        raise InvalidSolution("; ".join(broken))


def violations(problem: Problem, solution: Solution) -> Iterator[str]:
    """Yield a sentence for each broken rule."""
    yield from _conservation(problem, solution)
    yield from _dropped(problem, solution)
    yield from _placement(problem, solution)
    for index, replica in enumerate(solution.replicas):
        yield from _replica(problem, index, replica)
    yield from _figures(solution)
    yield from _strategy(problem, solution)


def _close(figure: float, truth: float) -> bool:
    return abs(figure - truth) <= RELATIVE_ERROR * max(1e-9, abs(truth))


def _occupied(length: int, alignment: int) -> int:
    return (length + alignment - 1) // alignment * alignment


def _conservation(problem: Problem, solution: Solution) -> Iterator[str]:
    given: Counter[tuple[str, int]] = Counter()
    for row in problem.batch.rows:
        given[row.source, row.length] += row.count
    found: Counter[tuple[str, int]] = Counter()
    longest = problem.options.max_length
    for replica in solution.replicas:
        for micro_batch in replica.micro_batches:
            for row in micro_batch.rows:
                if longest is not None and row.length > longest:
                    yield f"a sequence of {row.length} tokens is placed although the longest allowed is {longest}"
                if row.count < 1:
                    yield f"a micro-batch names {row.count} sequences of {row.length} tokens of {row.source}"
                found[row.source, row.length] += row.count
    for row in solution.dropped:
        found[row.source, row.length] += row.count
    for key in sorted(given.keys() | found.keys()):
        if given[key] != found[key]:
            yield f"{key[0]} gave {given[key]} sequences of {key[1]} tokens but the plan has {found[key]}"


def _dropped(problem: Problem, solution: Solution) -> Iterator[str]:
    options = problem.options
    held = max((replica.kind.max_tokens for replica in solution.replicas), default=0)
    for row in solution.dropped:
        if row.count < 1:
            yield f"{row.count} sequences of {row.length} tokens of {row.source} are listed as dropped"
        if options.over_long != "drop":
            yield f"a sequence of {row.length} tokens was dropped although the policy is {options.over_long}"
        within = options.max_length is None or row.length <= options.max_length
        if within and _occupied(row.length, problem.batch.alignment) <= held:
            yield f"a sequence of {row.length} tokens was dropped although a replica holds {held}"


def _placement(problem: Problem, solution: Solution) -> Iterator[str]:
    seen: set[int] = set()
    for index, replica in enumerate(solution.replicas):
        layout = replica.kind.layout
        if len(replica.ranks) != layout.tp * layout.cp * layout.pp:
            yield f"replica {index} of layout {layout} has {len(replica.ranks)} ranks"
        for rank in replica.ranks:
            if not 0 <= rank < problem.num_gpus:
                yield f"replica {index} has rank {rank} of {problem.num_gpus}"
            if rank in seen:
                yield f"rank {rank} is in two replicas"
            seen.add(rank)
        fewest_nodes = (layout.tp + problem.gpus_per_node - 1) // problem.gpus_per_node
        for first in range(0, len(replica.ranks), layout.tp):
            group = replica.ranks[first : first + layout.tp]
            if len({rank // problem.gpus_per_node for rank in group}) > fewest_nodes:
                yield f"replica {index} has a tensor-parallel group across nodes: {group}"


def _micro_batch_time(replica: PlannedReplica, micro_batch: PlannedMicroBatch, alignment: int) -> float:
    time = replica.kind.c
    for row in micro_batch.rows:
        s = _occupied(row.length, alignment)
        time += row.count * (replica.kind.a * s * s + replica.kind.b * s)
    return time


def _replica(problem: Problem, index: int, replica: PlannedReplica) -> Iterator[str]:
    alignment = problem.batch.alignment
    times = []
    for position, micro_batch in enumerate(replica.micro_batches):
        where = f"micro-batch {position} of replica {index}"
        own = sum(row.length * row.count for row in micro_batch.rows)
        occupied = sum(_occupied(row.length, alignment) * row.count for row in micro_batch.rows)
        if not micro_batch.rows:
            yield f"{where} is empty"
        if occupied > replica.kind.max_tokens:
            yield f"{where} has {occupied} tokens but holds {replica.kind.max_tokens}"
        if micro_batch.num_tokens != own or micro_batch.num_padding_tokens != occupied - own:
            said = f"{micro_batch.num_tokens} + {micro_batch.num_padding_tokens}"
            yield f"{where} says {said} tokens but has {own} + {occupied - own}"
        time = _micro_batch_time(replica, micro_batch, alignment)
        if not _close(micro_batch.time_ms, time):
            yield f"{where} says {micro_batch.time_ms} ms but the cost model gives {time}"
        times.append(time)
    closed_form = sum(times) + (replica.kind.layout.pp - 1) * max(times) if times else 0.0
    if not _close(replica.makespan_ms, closed_form):
        yield f"replica {index} says {replica.makespan_ms} ms but its micro-batches give {closed_form}"
    ordered = problem.options.method == "hydraulis"  # a plain loader keeps the order of arrival
    if ordered and replica.simulated_ms > closed_form * (1 + RELATIVE_ERROR):
        yield f"replica {index} is simulated at {replica.simulated_ms} ms, over its closed form {closed_form}"


def _figures(solution: Solution) -> Iterator[str]:
    makespan = max((replica.makespan_ms for replica in solution.replicas), default=0.0)
    simulated = max((replica.simulated_ms for replica in solution.replicas), default=0.0)
    if not _close(solution.makespan_ms, makespan):
        yield f"the plan says {solution.makespan_ms} ms but its slowest replica takes {makespan}"
    if not _close(solution.simulated_ms, simulated):
        yield f"the plan says {solution.simulated_ms} ms simulated but its slowest replica takes {simulated}"
    for bound in (solution.lower_bound_ms, solution.all_strategies_bound_ms):
        if not 0 <= bound <= solution.makespan_ms * (1 + RELATIVE_ERROR):  # false for NaN too
            yield f"the bound {bound} ms lies above the makespan {solution.makespan_ms} ms or is no time"
    if solution.optimal and solution.makespan_ms > solution.lower_bound_ms * (1 + 10 * RELATIVE_ERROR):
        yield f"the plan of {solution.makespan_ms} ms is called optimal with a bound of {solution.lower_bound_ms} ms"


def _strategy(problem: Problem, solution: Solution) -> Iterator[str]:
    groups = Counter(replica.kind for replica in solution.replicas)
    if groups != Counter(dict(solution.strategy.groups)):
        yield f"the replicas are not those of the strategy {solution.strategy}"
    if problem.candidates and solution.strategy not in problem.candidates:
        yield f"the strategy {solution.strategy} is none of the candidates"
    for kind in groups:
        if kind not in problem.kinds:
            yield f"layout {kind.layout} does not have the costs and the limit that were given"
    scope = "strategy" if problem.candidates or problem.options.method == "plain" else "all-strategies"
    if solution.bound_scope != scope and solution.makespan_ms > 0:
        yield f"the bound is said to cover {solution.bound_scope} but it was computed for {scope}"
