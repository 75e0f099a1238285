"""A stored plan, read for showing: pure.

Plans are read as JSON and not as `Plan`, whose checks of large ones take seconds; they passed them when they were
stored.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import orjson

from planner_client.contract import PlanFigures, PlanOverview, ReplicaLoad, ReplicaSeries
from planner_service.dashboard.lengths import length_bins
from planner_service.dashboard.spread import even_starts, spread_of
from planner_service.dashboard.timeline import PlannedPipeline, slowest_that_fit, timeline_of
from planner_service.simulation.records import Pipeline

MAX_RANKS_TEXT = 160
_OF_PLAN = frozenset(PlanFigures.model_fields)


@dataclass(frozen=True)
class PlanReading:
    """A plan and what was measured of it.

    Attributes
    ----------
    plan
        The plan as its JSON has it.
    measured_ms
        Longest wall-clock time of each replica that timings came of, by its number.
    """

    plan: Mapping[str, Any]
    measured_ms: Mapping[int, float]

    @classmethod
    def of(cls, plan: bytes, timings: Iterable[bytes]) -> "PlanReading":
        """Read a stored plan and all timings of it."""
        longest: dict[int, float] = {}
        for body in timings:
            for timing in orjson.loads(body)["replicas"]:
                replica = int(timing["replica"])
                longest[replica] = max(longest.get(replica, 0.0), float(timing["wall_ms"]))
        return cls(orjson.loads(plan), longest)

    @property
    def num_replicas(self) -> int:
        """Replicas of the strategy, idle ones included."""
        return len(self.plan["replicas"])

    def load(self, number: int) -> ReplicaLoad:
        """Return what one replica does."""
        replica = self.plan["replicas"][number]
        micro_batches = replica["micro_batches"]
        return ReplicaLoad(
            replica=number,
            layout=layout_of(replica),
            device=replica["device"],
            ranks=rank_ranges(replica["ranks"]),
            num_sequences=sum(entry["count"] for each in micro_batches for entry in each["sequences"]),
            num_tokens=sum(each["num_tokens"] for each in micro_batches),
            num_micro_batches=len(micro_batches),
            max_tokens=replica["max_tokens"],
            makespan_ms=replica["makespan_ms"],
            simulated_ms=replica["simulated_ms"],
            measured_ms=self.measured_ms.get(number),
        )


def overview_of(job: str, iteration: int, reading: PlanReading, max_points: int) -> PlanOverview:
    """Return a plan in bounded size, all its replicas in at most ``max_points`` points."""
    plan = reading.plan
    replicas = plan["replicas"]
    micro_batches = [each for replica in replicas for each in replica["micro_batches"]]
    return PlanOverview(
        job=job,
        iteration=iteration,
        plan=PlanFigures.model_validate({name: value for name, value in plan.items() if name in _OF_PLAN}),
        num_dropped=sum(entry["count"] for entry in plan["dropped"]),
        num_replicas=len(replicas),
        num_idle=sum(not replica["micro_batches"] for replica in replicas),
        num_micro_batches=len(micro_batches),
        num_padding_tokens=sum(each["num_padding_tokens"] for each in micro_batches),
        measured_ms=max(reading.measured_ms.values(), default=None),
        num_measured=len(reading.measured_ms),
        replicas=loads_of(reading, max_points),
        lengths=length_bins(_lengths(replicas)),
        timeline=timeline_of(slowest_that_fit(_pipelines(replicas))),
    )


def loads_of(reading: PlanReading, max_points: int) -> ReplicaSeries:
    """Return the loads of all replicas in at most ``max_points`` points."""
    replicas = reading.plan["replicas"]
    starts = even_starts(len(replicas), max_points)
    firsts = [int(start) for start in starts]
    return ReplicaSeries(
        first=firsts,
        last=[*(start - 1 for start in firsts[1:]), *([len(replicas) - 1] if firsts else [])],
        layout=[layout_of(replicas[first]) for first in firsts],
        makespan_ms=spread_of([replica["makespan_ms"] for replica in replicas], starts),
        measured_ms=spread_of([reading.measured_ms.get(number) for number in range(len(replicas))], starts),
    )


def _pipelines(replicas: Sequence[Mapping[str, Any]]) -> list[PlannedPipeline]:
    return [
        PlannedPipeline(
            number,
            replica["simulated_ms"],
            Pipeline(layout_of(replica), replica["pp"], tuple(each["time_ms"] for each in replica["micro_batches"])),
        )
        for number, replica in enumerate(replicas)
        if replica["micro_batches"]
    ]


def _lengths(replicas: Sequence[Mapping[str, Any]]) -> dict[str, Counter[int]]:
    devices = {replica["device"] for replica in replicas}
    by_layout: dict[str, Counter[int]] = {}
    for replica in replicas:
        layout = layout_of(replica) if len(devices) == 1 else f"{layout_of(replica)} {replica['device']}"
        counts = by_layout.setdefault(layout, Counter())
        for micro_batch in replica["micro_batches"]:
            for entry in micro_batch["sequences"]:
                counts[entry["length"]] += entry["count"]
    return {layout: counts for layout, counts in by_layout.items() if counts}


def layout_of(replica: Mapping[str, Any]) -> str:
    """Write a replica's layout as strategies do: (tp, pp), or (tp, cp, pp) where there is context parallelism."""
    degrees = (replica["tp"], replica["pp"]) if replica["cp"] == 1 else (replica["tp"], replica["cp"], replica["pp"])
    return f"({','.join(map(str, degrees))})"


def rank_ranges(ranks: Iterable[int]) -> str:
    """Write ranks as ranges, such as ``0-15,32``; what is too long to read ends with dots."""
    parts = []
    for _, run in groupby(enumerate(sorted(ranks)), key=lambda pair: pair[1] - pair[0]):
        members = [rank for _, rank in run]
        parts.append(str(members[0]) if len(members) == 1 else f"{members[0]}-{members[-1]}")
    text = ",".join(parts)
    return text if len(text) <= MAX_RANKS_TEXT else f"{text[:MAX_RANKS_TEXT]}…"
