"""Plans made by hand or at random, for tests that need no planner."""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from planner_client.contract import MicroBatch, Plan, Replica, SequenceCount

Entry = tuple[str, int, int]
"""Source, length in tokens, count."""


def make_micro_batch(entries: Sequence[Entry], alignment: int = 1) -> MicroBatch:
    num_tokens = sum(length * count for _, length, count in entries)
    physical = sum(-(-length // alignment) * alignment * count for _, length, count in entries)
    return MicroBatch(
        sequences=[SequenceCount(source=source, length=length, count=count) for source, length, count in entries],
        num_tokens=num_tokens,
        num_padding_tokens=physical - num_tokens,
        time_ms=0,
    )


def make_plan(
    replicas: Sequence[Sequence[Sequence[Entry]]],
    *,
    ranks: Sequence[Sequence[int]] | None = None,
    dropped: Sequence[Entry] = (),
    alignment: int = 1,
    layout: tuple[int, int, int] = (1, 1, 1),
    iteration: int | None = 0,
) -> Plan:
    """Seal a plan from entries by replica and micro-batch; replica i runs on rank i unless told otherwise."""
    tp, cp, pp = layout
    placed = [entry for replica in replicas for micro_batch in replica for entry in micro_batch]
    content: dict[str, object] = {
        "profile": "by-hand",
        "iteration": iteration,
        "seed": 0,
        "num_sequences": sum(count for *_, count in placed),
        "num_tokens": sum(length * count for _, length, count in placed),
        "dropped": [SequenceCount(source=source, length=length, count=count) for source, length, count in dropped],
        "replicas": [
            Replica(
                tp=tp,
                cp=cp,
                pp=pp,
                device="cpu",
                ranks=[number] if ranks is None else list(ranks[number]),
                max_tokens=2**31 - 1,
                makespan_ms=0,
                simulated_ms=0,
                micro_batches=[make_micro_batch(entries, alignment) for entries in replica],
            )
            for number, replica in enumerate(replicas)
        ],
        "makespan_ms": 0,
        "simulated_ms": 0,
        "sync_ms": 0,
        "lower_bound_ms": None,
        "gap": None,
        "bound_scope": None,
        "solved_by": "heuristic",
        "status": "feasible",
        "planning_ms": 0,
        "num_gpus": max(1, len(replicas)),
        "alignment": alignment,
        "strategy": f"({tp},{pp})x{len(replicas)}",
    }
    return Plan.seal(**content)


def reseal(plan: Plan, **changes: object) -> Plan:
    """Change fields of a plan and give it the digest of what it then says."""
    kept = {name: value for name, value in plan if name != "digest"}
    return Plan.seal(**(kept | changes))


def random_plan(
    lengths_by_source: Mapping[str, Sequence[int]],
    num_replicas: int,
    seed: int,
    *,
    alignment: int = 1,
    drop_share: float = 0.0,
    ranks: Sequence[Sequence[int]] | None = None,
    layout: tuple[int, int, int] = (1, 1, 1),
) -> Plan:
    """Assign every sequence at random to a replica and one of its (at most 3) micro-batches, or drop it."""
    draw = np.random.default_rng(seed)
    places: dict[tuple[int, int], Counter[tuple[str, int]]] = {}
    dropped: Counter[tuple[str, int]] = Counter()
    for source, lengths in lengths_by_source.items():
        for length in lengths:
            if draw.random() < drop_share:
                dropped[source, length] += 1
            else:
                place = (int(draw.integers(num_replicas)), int(draw.integers(3)))
                places.setdefault(place, Counter())[source, length] += 1
    replicas = [
        [_entries(places[replica, number], draw) for number in range(3) if (replica, number) in places]
        for replica in range(num_replicas)
    ]
    return make_plan(replicas, ranks=ranks, dropped=_entries(dropped, draw), alignment=alignment, layout=layout)


def _entries(counts: Counter[tuple[str, int]], draw: np.random.Generator) -> list[Entry]:
    """List the counts in random order, now and then one entry cut in two."""
    entries: list[Entry] = []
    for (source, length), count in counts.items():
        first = int(draw.integers(1, count + 1))
        entries += [(source, length, part) for part in (first, count - first) if part]
    draw.shuffle(entries)
    return [(str(source), int(length), int(count)) for source, length, count in entries]
