"""The independent validator: checks a solution against the problem from first principles.

It shares no code with the search: times, tokens, placement and conservation are recomputed here from the formulas.
Every plan passes it before it leaves.
"""

from collections import Counter
from collections.abc import Iterator

from planner_service.core.problem import GroupRow, Problem
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
    yield from _groups(problem, solution)
    yield from _dropped(problem, solution)
    yield from _counts(problem, solution)
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


def _is_over_long(problem: Problem, length: int, held: int) -> bool:
    longest = problem.options.max_length
    return (longest is not None and length > longest) or _occupied(length, problem.batch.alignment) > held


def _cannot_run_whole(problem: Problem, group: GroupRow, held: int) -> bool:
    lengths = [_occupied(length, problem.batch.alignment) for length in group.lengths]
    taken = len(lengths) * max(lengths) if problem.options.is_padded else sum(lengths)
    return taken > held or any(_is_over_long(problem, length, held) for length in group.lengths)


def _dropped(problem: Problem, solution: Solution) -> Iterator[str]:
    options = problem.options
    held = max((replica.kind.max_tokens for replica in solution.replicas), default=0)
    of_groups: Counter[tuple[str, int]] = Counter()
    for group in problem.groups:
        if _cannot_run_whole(problem, group, held):
            for length in group.lengths:
                of_groups[group.source, length] += group.count
    for row in solution.dropped:
        if row.count < 1:
            yield f"{row.count} sequences of {row.length} tokens of {row.source} are listed as dropped"
        if options.over_long != "drop":
            yield f"a sequence of {row.length} tokens was dropped although the policy is {options.over_long}"
        if not _is_over_long(problem, row.length, held) and row.count > of_groups[row.source, row.length]:
            yield f"a sequence of {row.length} tokens was dropped although a replica holds {held}"
    dropped = Counter({(row.source, row.length): row.count for row in solution.dropped})
    for (source, length), count in sorted(of_groups.items()):
        if options.over_long == "drop" and dropped[source, length] < count:
            yield f"{count} sequences of {length} tokens of {source} belong to groups that cannot run but were kept"


def _groups(problem: Problem, solution: Solution) -> Iterator[str]:
    """Every group that can run stands whole in micro-batches that have its sequences, and no other group does."""
    held = max((replica.kind.max_tokens for replica in solution.replicas), default=0)
    wanted: Counter[tuple[str, tuple[int, ...]]] = Counter()
    for group in problem.groups:
        if problem.options.over_long != "drop" or not _cannot_run_whole(problem, group, held):
            wanted[group.source, group.lengths] += group.count
    found: Counter[tuple[str, tuple[int, ...]]] = Counter()
    for index, replica in enumerate(solution.replicas):
        for position, micro_batch in enumerate(replica.micro_batches):
            present = Counter({(row.source, row.length): row.count for row in micro_batch.rows})
            for group in micro_batch.groups:
                found[group.source, group.lengths] += group.count
                for length in group.lengths:
                    present[group.source, length] -= group.count
            lacking = sorted(key for key, count in present.items() if count < 0)
            if lacking:
                source, length = lacking[0]
                yield (
                    f"micro-batch {position} of replica {index} names groups with more sequences of {length} tokens of "
                    f"{source} than it has"
                )
    for key in sorted(wanted.keys() | found.keys()):
        if wanted[key] != found[key]:
            yield f"{key[0]} gave {wanted[key]} groups of {key[1]} tokens but the plan keeps {found[key]} together"


def _counts(problem: Problem, solution: Solution) -> Iterator[str]:
    """Numbers of micro-batches and idle replicas are as asked for."""
    options = problem.options
    counts = [len(replica.micro_batches) for replica in solution.replicas]
    if options.equal_counts and len(set(counts)) > 1:
        yield f"replicas run {min(counts)} to {max(counts)} micro-batches although equal counts were asked for"
    for index, (replica, count) in enumerate(zip(solution.replicas, counts, strict=True)):
        if count % options.count_multiple:
            yield f"replica {index} runs {count} micro-batches, no multiple of {options.count_multiple}"
        if options.at_least_stages and 0 < count < replica.kind.layout.pp:
            yield f"replica {index} runs {count} micro-batches on {replica.kind.layout.pp} stages"
        if not count and not options.idle_allowed:
            yield f"replica {index} is idle although that is forbidden"


def _placement(problem: Problem, solution: Solution) -> Iterator[str]:
    seen: set[int] = set()
    node_of: dict[str, dict[int, int]] = {}
    first_rank = 0
    for pool in problem.pools:
        counted = {first_rank + number: number // pool.gpus_per_node for number in range(pool.num_gpus)}
        given = {rank: number for number, node in enumerate(pool.nodes) for rank in node}
        node_of[pool.device] = given or counted
        first_rank += pool.num_gpus
    per_node_of = {pool.device: pool.gpus_per_node for pool in problem.pools}
    for index, replica in enumerate(solution.replicas):
        layout = replica.kind.layout
        own, per_node = node_of[replica.kind.device], per_node_of[replica.kind.device]
        if len(replica.ranks) != layout.tp * layout.cp * layout.pp:
            yield f"replica {index} of layout {layout} has {len(replica.ranks)} ranks"
        for rank in replica.ranks:
            if rank not in own:
                yield f"replica {index} of {replica.kind.device} has rank {rank}, which is of another type or none"
            if rank in seen:
                yield f"rank {rank} is in two replicas"
            seen.add(rank)
        fewest_nodes = (layout.tp + per_node - 1) // per_node
        for begin in range(0, len(replica.ranks), layout.tp):
            group = replica.ranks[begin : begin + layout.tp]
            if len({own.get(rank) for rank in group}) > fewest_nodes:
                yield f"replica {index} has a tensor-parallel group across nodes: {group}"


def _charged(micro_batch: PlannedMicroBatch, problem: Problem) -> list[tuple[int, int]]:
    """Tokens that a sequence takes and how many take them, after alignment and, under padded cost, padding."""
    aligned = [(_occupied(row.length, problem.batch.alignment), row.count) for row in micro_batch.rows]
    if not problem.options.is_padded:
        return aligned
    longest = max((length for length, _ in aligned), default=0)
    return [(longest, count) for _, count in aligned]


def _replica(problem: Problem, index: int, replica: PlannedReplica) -> Iterator[str]:
    kind = replica.kind
    times = []
    for position, micro_batch in enumerate(replica.micro_batches):
        where = f"micro-batch {position} of replica {index}"
        own = sum(row.length * row.count for row in micro_batch.rows)
        charged = _charged(micro_batch, problem)
        occupied = sum(length * count for length, count in charged)
        if not micro_batch.rows:
            yield f"{where} is empty"
        if occupied > kind.max_tokens:
            yield f"{where} has {occupied} tokens but holds {kind.max_tokens}"
        if micro_batch.num_tokens != own or micro_batch.num_padding_tokens != occupied - own:
            said = f"{micro_batch.num_tokens} + {micro_batch.num_padding_tokens}"
            yield f"{where} says {said} tokens but has {own} + {occupied - own}"
        time = kind.c + sum(count * (kind.a * length * length + kind.b * length) for length, count in charged)
        if not _close(micro_batch.time_ms, time):
            yield f"{where} says {micro_batch.time_ms} ms but the cost model gives {time}"
        times.append(time)
    closed_form = sum(times) + (kind.layout.pp - 1) * max(times) if times else 0.0
    if not _close(replica.makespan_ms, closed_form):
        yield f"replica {index} says {replica.makespan_ms} ms but its micro-batches give {closed_form}"
    ordered = problem.options.method == "hydraulis"  # what serves comparison keeps its own order
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
    if problem.options.homogeneous and len(groups) > 1:
        yield f"the strategy {solution.strategy} is not homogeneous"
    limit = problem.options.max_process_groups
    if limit is not None and (needed := sum(map(_process_groups, solution.replicas))) > limit:
        yield f"the plan needs {needed} process groups but at most {limit} are allowed"
    scope = "strategy" if problem.candidates or problem.options.method != "hydraulis" else "all-strategies"
    if solution.bound_scope != scope and solution.makespan_ms > 0:
        yield f"the bound is said to cover {solution.bound_scope} but it was computed for {scope}"


def _process_groups(replica: PlannedReplica) -> int:
    """Distinct tensor, context and pipeline groups of two ranks or more, read off the ranks stage by stage."""
    layout, ranks = replica.kind.layout, replica.ranks
    per_stage = layout.tp * layout.cp
    groups = set()
    for position in range(len(ranks)):
        stage, inside = divmod(position, per_stage)
        cp_rank, tp_rank = divmod(inside, layout.tp)
        groups.add(("tensor", stage, cp_rank))
        groups.add(("context", stage, tp_rank))
        groups.add(("pipeline", cp_rank, tp_rank))
    sizes = {"tensor": layout.tp, "context": layout.cp, "pipeline": layout.pp}
    return sum(sizes[name] > 1 for name, _, _ in groups)
