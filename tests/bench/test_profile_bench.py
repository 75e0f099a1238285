"""How well measured profiles predict: micro-batches that no fit saw, and whole iterations by plans drawn at random."""

import random
import statistics
from collections import defaultdict
from dataclasses import dataclass

import numpy as np
import pytest
from planned_iterations import CONFIG, Iterations, Took, run_iterations

from planner_client.contract import LayoutCost, MicroBatchSample, Plan, PlanRequest, Profile, ProfileMeasurement
from planner_service.core.simulate import simulate_1f1b
from planner_service.translate import fit_profile, plan_request
from worker_agent.demo.outcome import predict_ms
from worker_agent.local_ranks import run_on_local_ranks
from worker_agent.profiler import ProfilingSettings, measure, parse_layouts, split_held_out

pytestmark = [pytest.mark.bench, pytest.mark.long, pytest.mark.timeout(1800)]

STRATEGIES = {"(1,1)x2": (1, 1, 2), "(2,1)x1": (2, 1, 1), "(1,2)x1": (1, 2, 1)}
MAX_TOKENS = 8192
NUM_ITERATIONS = 50
NUM_WARM_UPS = 6
MICRO_BATCH_ERROR_PCT = 8.0
ITERATION_ERROR_PCT = 10.0
SETTINGS = ProfilingSettings(
    name="bench",
    config=CONFIG,
    max_tokens=MAX_TOKENS,
    max_length=MAX_TOKENS,
    layouts=parse_layouts("1x1,2x1,1x2"),
    num_repeats=3,
    max_repeats=9,
    with_collectives=True,
    timeout_s=1200.0,
)


@dataclass(frozen=True)
class Predicted:
    """An iteration: its strategy, what the plan said, and what was measured (ms)."""

    strategy: str
    predicted_ms: float
    took: Took
    plan: Plan

    @property
    def error_pct(self) -> float:
        return 100 * (self.predicted_ms / self.took.wall_ms - 1)

    @property
    def hidden_share(self) -> float:
        """What the slowest replica took over the simulation of its own measured micro-batches."""
        number = max(range(len(self.took.compute_ms)), key=lambda one: self.took.compute_ms[one])
        simulated = simulate_1f1b(self.plan.replicas[number].pp, self.took.micro_batch_ms[number])
        return self.took.compute_ms[number] / simulated


@pytest.fixture(scope="module")
def measurement() -> ProfileMeasurement:
    return measure(SETTINGS)


def say(text: str) -> None:
    print(text)  # noqa: T201 - the figures are what a bench is for


def errors_pct(cost: LayoutCost, samples: list[MicroBatchSample]) -> list[float]:
    """Return the error on each micro-batch, against the median of its repeats."""
    repeats: dict[tuple[int, ...], list[float]] = defaultdict(list)
    for sample in samples:
        repeats[tuple(sample.lengths)].append(sample.time_ms)
    return [100 * abs(predict_ms(cost, lengths) / statistics.median(times) - 1) for lengths, times in repeats.items()]


def test_micro_batches_that_no_fit_saw_are_predicted(measurement: ProfileMeasurement) -> None:
    to_fit, held_out = split_held_out(measurement)
    say(f"\n{measurement.source}\n")
    say("| layout | samples | outliers | a (ms/token²) | b (ms/token) | c (ms) | held out | median error | worst |")
    say("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    medians = {}
    for cost, layout, apart in zip(fit_profile(to_fit).layouts, measurement.layouts, held_out, strict=True):
        errors = errors_pct(cost, apart)
        medians[cost.tp, cost.pp] = statistics.median(errors)
        num_outliers = sum(sample.is_outlier for sample in layout.samples)
        say(
            f"| {cost.tp}x{cost.pp} | {len(layout.samples)} | {num_outliers} | {cost.a_ms_per_token2:.3g} | "
            f"{cost.b_ms_per_token:.3g} | {cost.c_ms:.3g} | {len(errors)} | {statistics.median(errors):.1f} % | "
            f"{max(errors):.1f} % |"
        )
    say("\n| collective | ranks | bytes | ms |\n| --- | ---: | ---: | ---: |")
    for one in measurement.collectives:
        say(f"| {one.kind} | {one.num_ranks} | {one.num_bytes:,} | {one.time_ms:.2f} |")
    assert max(medians.values()) <= MICRO_BATCH_ERROR_PCT, (medians, measurement.source)


def drawn_iterations(profile: Profile) -> tuple[list[str], Iterations]:
    """Plan random batches by random strategies and methods; the first ones only warm up."""
    draw = np.random.default_rng(11)
    choose = random.Random(11)  # noqa: S311 - a draw of plans, not a secret
    strategies, plans, held = [], [], []
    for number in range(NUM_WARM_UPS + NUM_ITERATIONS):
        strategy = list(STRATEGIES)[number % 3] if number < NUM_WARM_UPS else choose.choice(list(STRATEGIES))
        tp, pp, num_replicas = STRATEGIES[strategy]
        sizes = [int(size) for size in draw.integers(4, 13, 2)]
        lengths = [np.minimum(draw.lognormal(6.2, 1.1, size).astype(int) + 16, 4096).tolist() for size in sizes]
        request = PlanRequest.model_validate(
            {
                "profile": profile,
                "num_gpus": 2,
                "strategies": [[{"tp": tp, "pp": pp, "num_replicas": num_replicas}]],
                "lengths": {f"rank-{rank}": own for rank, own in enumerate(lengths)},
                "options": {"method": choose.choice(["hydraulis", "plain"]), "seed": number},
            }
        )
        strategies.append(strategy)
        plans.append(plan_request(request, [profile], remaining_ms=lambda: 1e9))
        held.append(tuple(tuple(own) for own in lengths))
    return strategies, Iterations(tuple(plans), tuple(held), NUM_WARM_UPS)


def test_iterations_by_random_plans_take_what_was_predicted(measurement: ProfileMeasurement) -> None:
    profile = fit_profile(measurement)
    strategies, what = drawn_iterations(profile)
    (taken, *_) = run_on_local_ranks(run_iterations, what, num_ranks=2, timeout_s=1200, collective_timeout_s=300)
    iterations = [
        Predicted(strategy, plan.simulated_ms + plan.sync_ms, took, plan)
        for strategy, plan, took in zip(strategies[NUM_WARM_UPS:], what.plans[NUM_WARM_UPS:], taken, strict=True)
    ]
    loads = [one.took.foreign_cores for one in iterations if one.took.foreign_cores is not None]
    load = f"{statistics.fmean(loads):.2f} cores" if loads else "unknown"
    say(f"\nforeign load {load}; sync {profile.sync_ms:.1f} ms\n")
    say("| strategy | iterations | median time | median error | bias | worst | computed / simulated from measured |")
    say("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for strategy in [*STRATEGIES, "all"]:
        own = [one for one in iterations if strategy in {one.strategy, "all"}]
        errors = [one.error_pct for one in own]
        say(
            f"| {strategy} | {len(own)} | {statistics.median(one.took.wall_ms for one in own):.0f} ms | "
            f"{statistics.median(map(abs, errors)):.1f} % | {statistics.median(errors):+.1f} % | "
            f"{max(map(abs, errors)):.1f} % | {statistics.median(one.hidden_share for one in own):.3f} |"
        )
    median = statistics.median(abs(one.error_pct) for one in iterations)
    assert median <= ITERATION_ERROR_PCT, f"median error {median:.1f} %, foreign load {load}"
