"""What the client checks of a plan before anybody runs it: that it answers the request and keeps its own caps."""

from collections.abc import Iterator

from planner_client.charged import charged_lengths
from planner_client.contract import MicroBatch, Plan, PlanOptions, PlanRequest, Profile, Replica
from planner_client.errors import BadAnswer


def check_answers(plan: Plan, request: PlanRequest) -> Plan:
    """Check that a plan is for this request and could be run: caps, ranks, totals, options, every sequence once.

    Raises
    ------
    BadAnswer
        Naming the first thing that is wrong.
    """
    for wrong in _faults(plan, request):
        raise BadAnswer(f"the plan that came cannot be run: {wrong}")
    return plan


def _faults(plan: Plan, request: PlanRequest) -> Iterator[str]:
    yield from _identity(plan, request)
    yield from _sequences(plan, request)
    yield from _groups(plan, request)
    yield from _counts(plan, request.options)
    seen: set[int] = set()
    for index, replica in enumerate(plan.replicas):
        yield from _replica(index, replica, plan, seen)
    yield from _devices(plan, request)
    micro_batches = [micro_batch for replica in plan.replicas for micro_batch in replica.micro_batches]
    placed = sum(entry.count for micro_batch in micro_batches for entry in micro_batch.sequences)
    tokens = sum(micro_batch.num_tokens for micro_batch in micro_batches)
    if (plan.num_sequences, plan.num_tokens) != (placed, tokens):
        yield (
            f"it says {plan.num_sequences} sequences of {plan.num_tokens} tokens but places {placed} of {tokens} tokens"
        )
    if plan.lower_bound_ms is not None and plan.lower_bound_ms > plan.makespan_ms * (1 + 1e-6):
        yield f"its bound of {plan.lower_bound_ms} ms lies above its makespan of {plan.makespan_ms} ms"


def _identity(plan: Plan, request: PlanRequest) -> Iterator[str]:
    options = request.options
    asked = {
        "iteration": (request.iteration, plan.iteration),
        "num_gpus": (request.total_gpus, plan.num_gpus),
        "profile": (request.profile_names, plan.profile),
        "alignment": (options.alignment, plan.alignment),
        "method": (options.method, plan.method),
        "cost": (options.cost, plan.cost),
        "seed": (options.seed, plan.seed),
    }
    for name, (wanted, got) in asked.items():
        if wanted != got:
            yield f"{name} is {got!r} but {wanted!r} was asked for"


def _sequences(plan: Plan, request: PlanRequest) -> Iterator[str]:
    given = {
        (source, length): count
        for source, histogram in request.histograms_by_source().items()
        for length, count in zip(histogram.lengths, histogram.counts, strict=True)
    }
    held: dict[tuple[str, int], int] = {}
    placed = (
        entry for replica in plan.replicas for micro_batch in replica.micro_batches for entry in micro_batch.sequences
    )
    for entry in (*placed, *plan.dropped):
        key = (entry.source, entry.length)
        held[key] = held.get(key, 0) + entry.count
    if held != given:
        source, length = min(key for key in given.keys() | held.keys() if given.get(key, 0) != held.get(key, 0))
        yield (
            f"source {source!r} gave {given.get((source, length), 0)} sequences of {length} tokens, but the plan holds "
            f"{held.get((source, length), 0)}"
        )
    if plan.dropped and request.options.over_long != "drop":
        yield f"it drops a sequence of {plan.dropped[0].length} tokens, which the request does not allow"


def _groups(plan: Plan, request: PlanRequest) -> Iterator[str]:
    """Every group of the request stands in micro-batches that hold its sequences, unless some of these are dropped."""
    asked: dict[tuple[str, tuple[int, ...]], int] = {}
    for source, groups in (request.atomic_groups or {}).items():
        for group in groups:
            key = (source, tuple(sorted(group.lengths)))
            asked[key] = asked.get(key, 0) + group.count
    found: dict[tuple[str, tuple[int, ...]], int] = {}
    for index, replica in enumerate(plan.replicas):
        for position, micro_batch in enumerate(replica.micro_batches):
            yield from _lacking(f"micro-batch {position} of replica {index}", micro_batch)
            for named in micro_batch.groups:
                key = (named.source, tuple(sorted(named.lengths)))
                found[key] = found.get(key, 0) + named.count
    dropped = {(entry.source, entry.length): entry.count for entry in plan.dropped}
    for source, lengths in sorted(asked.keys() | found.keys()):
        wanted, got = asked.get((source, lengths), 0), found.get((source, lengths), 0)
        may_lack = all((source, length) in dropped for length in lengths)
        if got > wanted or (got < wanted and not may_lack):
            yield f"source {source!r} gave {wanted} groups of {list(lengths)} tokens, but the plan keeps {got} together"


def _lacking(where: str, micro_batch: MicroBatch) -> Iterator[str]:
    held: dict[tuple[str, int], int] = {}
    for entry in micro_batch.sequences:
        held[entry.source, entry.length] = held.get((entry.source, entry.length), 0) + entry.count
    for group in micro_batch.groups:
        for length in group.lengths:
            held[group.source, length] = held.get((group.source, length), 0) - group.count
    for (source, length), left in sorted(held.items()):
        if left < 0:
            yield f"{where} names groups with {-left} sequences of {length} tokens of {source!r} that it does not hold"


def _counts(plan: Plan, options: PlanOptions) -> Iterator[str]:
    counts = [len(replica.micro_batches) for replica in plan.replicas]
    if options.equal_micro_batch_counts and len(set(counts)) > 1:
        yield f"its replicas run {min(counts)} to {max(counts)} micro-batches, but equal numbers were asked for"
    multiple, limit = options.micro_batch_count_multiple, options.max_tokens_per_micro_batch
    for index, (replica, count) in enumerate(zip(plan.replicas, counts, strict=True)):
        if count % multiple:
            yield f"replica {index} runs {count} micro-batches, but multiples of {multiple} were asked for"
        if options.at_least_stages and 0 < count < replica.pp:
            yield f"replica {index} runs {count} micro-batches on {replica.pp} stages, but no fewer were asked for"
        if not count and options.idle_replicas == "forbid":
            yield f"replica {index} is idle, but idle replicas were forbidden"
        if limit is not None and replica.max_tokens > limit:
            yield f"replica {index} takes {replica.max_tokens} tokens a micro-batch, but the request allows {limit}"


def _replica(index: int, replica: Replica, plan: Plan, seen: set[int]) -> Iterator[str]:
    num_ranks = replica.tp * replica.cp * replica.pp
    if len(replica.ranks) != num_ranks:
        yield f"replica {index} has {len(replica.ranks)} ranks but its layout takes {num_ranks}"
    for rank in replica.ranks:
        if rank >= plan.num_gpus:
            yield f"replica {index} has rank {rank} of {plan.num_gpus} GPUs"
        if rank in seen:
            yield f"rank {rank} is in the plan twice"
        seen.add(rank)
    for position, micro_batch in enumerate(replica.micro_batches):
        yield from _micro_batch(f"micro-batch {position} of replica {index}", micro_batch, replica, plan)


def _devices(plan: Plan, request: PlanRequest) -> Iterator[str]:
    """Every replica runs on GPUs of one type, that which it names where the request says what its types are called.

    A job that learned calls slow ranks a type of their own.
    """
    pools = request.ranks_of_pools()
    if len(pools) == 1:
        return
    pool_of = {rank: number for number, ranks in enumerate(pools) for rank in ranks}
    for index, replica in enumerate(plan.replicas):
        own = {pool_of.get(rank) for rank in replica.ranks}
        if len(own) > 1:
            yield f"replica {index} has ranks of {len(own)} types of GPU: {replica.ranks[:16]}"
        for number in own - {None}:
            profile = request.pools[number or 0].profile
            if plan.profile_version is not None or not isinstance(profile, Profile):
                continue
            if profile.device.name != replica.device:
                yield f"replica {index} is said to run on {replica.device!r} but has ranks of {profile.device.name!r}"


def _charged_tokens(micro_batch: MicroBatch, plan: Plan) -> int:
    """Tokens that a micro-batch takes: aligned and, under padded cost, each sequence as long as the longest."""
    charged = charged_lengths(micro_batch, plan.alignment, is_padded=plan.cost == "padded")
    return sum(length * count for length, count in charged)


def _micro_batch(where: str, micro_batch: MicroBatch, replica: Replica, plan: Plan) -> Iterator[str]:
    own = sum(entry.length * entry.count for entry in micro_batch.sequences)
    occupied = _charged_tokens(micro_batch, plan)
    if not micro_batch.sequences:
        yield f"{where} is empty"
    if (micro_batch.num_tokens, micro_batch.num_padding_tokens) != (own, occupied - own):
        said = f"{micro_batch.num_tokens} + {micro_batch.num_padding_tokens}"
        yield f"{where} says {said} tokens of sequences and padding but has {own} + {occupied - own}"
    if occupied > replica.max_tokens:
        yield f"{where} has {occupied} tokens but its replica holds {replica.max_tokens}"
