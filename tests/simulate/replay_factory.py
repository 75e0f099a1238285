"""Made-up replays whose sums are easy."""

from collections.abc import Mapping, Sequence

from planner_service.simulation.records import Iteration, Outcome, Pipeline, Planned, Replay, StaticTrial


def planned(makespan_ms: float, strategy: str = "(1,1)x2", **fields: object) -> Planned:
    values: dict[str, object] = {
        "strategy": strategy,
        "makespan_ms": makespan_ms,
        "simulated_ms": makespan_ms * 0.9,
        "sync_ms": 0.0,
        "planning_ms": 10.0,
        "lower_bound_ms": makespan_ms / 1.25,
        "gap": 0.25,
        "bound_scope": "strategy",
        "all_strategies_bound_ms": makespan_ms / 2,
        "cut_by_wall_clock": False,
        "pipelines": (Pipeline("(1,1)", 1, (makespan_ms,)), Pipeline("(1,2)", 2, (makespan_ms / 3, makespan_ms / 3))),
        **fields,
    }
    return Planned(**values)  # type: ignore[arg-type]


def outcomes(name: str, plans: Sequence[Planned | None]) -> tuple[Outcome, ...]:
    return tuple(
        Outcome(name, index, plan, None if plan else "deadline-exceeded: none by then")
        for index, plan in enumerate(plans)
    )


def replay(
    plans: Mapping[str, Sequence[Planned | None]], static: Sequence[StaticTrial] = (), switch_ms: float = 0.0
) -> Replay:
    longest = max(len(row) for row in plans.values())
    return Replay(
        title="made up <&>",
        profile="made-up",
        gpus="4",
        num_gpus=4,
        planners=tuple(plans),
        iterations=tuple(Iteration(index, 10, 1000, 400) for index in range(longest)),
        outcomes=tuple(outcome for name, row in plans.items() for outcome in outcomes(name, row)),
        static=tuple(static),
        switch_ms=switch_ms,
    )
