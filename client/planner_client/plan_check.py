"""What the client checks of a plan before anybody runs it: that it answers the request and keeps its own caps."""

from collections.abc import Iterator

from planner_client.contract import MicroBatch, Plan, PlanRequest, Replica
from planner_client.errors import BadAnswer


def check_answers(plan: Plan, request: PlanRequest) -> Plan:
    """Check that a plan is for this request and could be run: caps, ranks, totals, every sequence exactly once.

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
    seen: set[int] = set()
    for index, replica in enumerate(plan.replicas):
        yield from _replica(index, replica, plan, seen)
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
    profile = request.profile if isinstance(request.profile, str) else request.profile.name
    options = request.options
    asked = {
        "iteration": (request.iteration, plan.iteration),
        "num_gpus": (request.num_gpus, plan.num_gpus),
        "profile": (profile, plan.profile),
        "alignment": (options.alignment, plan.alignment),
        "method": (options.method, plan.method),
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
        yield from _micro_batch(f"micro-batch {position} of replica {index}", micro_batch, replica, plan.alignment)


def _micro_batch(where: str, micro_batch: MicroBatch, replica: Replica, alignment: int) -> Iterator[str]:
    own = sum(entry.length * entry.count for entry in micro_batch.sequences)
    occupied = sum(-(-entry.length // alignment) * alignment * entry.count for entry in micro_batch.sequences)
    if not micro_batch.sequences:
        yield f"{where} is empty"
    if (micro_batch.num_tokens, micro_batch.num_padding_tokens) != (own, occupied - own):
        said = f"{micro_batch.num_tokens} + {micro_batch.num_padding_tokens}"
        yield f"{where} says {said} tokens of sequences and padding but has {own} + {occupied - own}"
    if occupied > replica.max_tokens:
        yield f"{where} has {occupied} tokens but its replica holds {replica.max_tokens}"
