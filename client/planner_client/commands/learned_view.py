"""What a job learned, on a terminal."""

import time
from collections.abc import Sequence

from planner_client.commands.shown import age, coloured, print_facts, print_space, print_table
from planner_client.contract import LearnedCost, LearnedVersion, LearnedVersionSummary, Learning, SlowRanks
from planner_client.contract.wording import first_few

_FIGURES = ("samples", "a before", "a", "b before", "b", "c before", "c", "error before", "error")


def show_learning(learning: Learning, versions: Sequence[LearnedVersionSummary], mode: str) -> None:
    """Print what is believed now, and the newest versions."""
    drift = [
        f"{own.device} takes {own.factor:.3g} times what its profile says" + (" (drifting)" if own.is_drifting else "")
        for own in learning.devices
    ]
    print_facts(
        (
            ("job", learning.job),
            ("learning", mode),
            ("version", "none yet" if learning.version is None else str(learning.version)),
            ("iterations", f"{learning.num_iterations:,} with measured times"),
            *(("profile", line) for line in drift),
            *(("slow", coloured(line, "yellow")) for line in _slow(learning.slow)),
        )
    )
    _print_costs(learning.costs)
    if versions:
        now = time.time()
        print_space()
        print_table(
            ("version", "iteration", "age", "why"),
            (
                (
                    str(one.version),
                    "-" if one.iteration is None else f"{one.iteration:,}",
                    age(one.created_at, now),
                    "; ".join(one.reasons),
                )
                for one in versions
            ),
            right=("version", "iteration", "age"),
        )


def show_version(version: LearnedVersion) -> None:
    """Print one version: why, and what changed."""
    iteration = "on request" if version.iteration is None else f"after the times of iteration {version.iteration:,}"
    print_facts(
        (
            ("job", version.job),
            ("version", f"{version.version}, made {iteration}"),
            *(("why", reason) for reason in version.reasons),
            *(("slow", coloured(line, "yellow")) for line in _slow(version.slow)),
            *(("left out", f"{one.strategy} {one.reason}") for one in version.left_out),
        )
    )
    _print_costs(version.costs)


def _slow(slow: Sequence[SlowRanks]) -> list[str]:
    return [
        f"ranks {first_few([str(rank) for rank in own.ranks])} of {own.device} take {own.factor:g} times as long"
        for own in slow
    ]


def _print_costs(costs: Sequence[LearnedCost]) -> None:
    """Print the kinds that have samples or whose cost is not the one before."""
    shown = [own for own in costs if own.num_samples or own.before != own.after]
    if not shown:
        return
    print_space()
    print_table(("layout", "device", *_FIGURES), map(_cost_row, shown), right=_FIGURES)


def _cost_row(own: LearnedCost) -> tuple[str, ...]:
    layout = f"({own.tp},{own.pp})" if own.cp == 1 else f"({own.tp},{own.cp},{own.pp})"
    pairs = (
        (own.before.a_ms_per_token2, own.after.a_ms_per_token2),
        (own.before.b_ms_per_token, own.after.b_ms_per_token),
        (own.before.c_ms, own.after.c_ms),
    )
    coefficients = (f"{value:.3g}" for pair in pairs for value in pair)
    errors = ("-" if error is None else f"{error:.1f}%" for error in (own.registered_error_pct, own.learned_error_pct))
    return (layout, own.device, f"{own.num_samples:,}", *coefficients, *errors)
