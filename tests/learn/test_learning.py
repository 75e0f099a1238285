"""What is learned from measured times, without a service: against machines whose truth is known."""

import numpy as np
import pytest
from pydantic import TypeAdapter
from simulated import COSTS, HALF, WIDE, Loop, Machines, registered, replace, slower, step

from planner_service.core.learn.belief import believed_cost
from planner_service.core.learn.buffer import MAX_IN_BUCKET, MAX_SAMPLES, bucket_of, keep
from planner_service.core.learn.decide import spans
from planner_service.core.learn.measured import Cost, Kind, Run, Sample
from planner_service.core.learn.observe import observe
from planner_service.core.learn.slowness import FORGET_AFTER
from planner_service.core.learn.state import LearnerState
from planner_service.profiles import builtin_profiles

UNLIKE = {WIDE: Cost(2.6e-6, 0.012, 6.0), HALF: Cost(2.5e-6, 0.033, 3.5)}
"""Machines that differ from the registered costs in every coefficient, by up to half."""


def test_costs_are_learned_through_noise_and_outliers() -> None:
    """Invariants, with 5 % noise and 1 % of micro-batches ten times as slow, after 200 samples of a kind:

    1. What plans are made with predicts nine of ten micro-batches within 3 % of the truth (the others are lengths that
       hardly ever came).
    2. Coefficients that the samples tell (their standard error is below 1 %) are within 3 % of the truth.
    3. No rank counts as slow.
    """
    for seed in range(4):
        machines, loop = Machines(UNLIKE, generator=np.random.default_rng(seed)), Loop(registered())
        while min(loop.state.of_kind(kind).num_samples for kind in UNLIKE) < 200:
            loop.take(step(machines, loop.number))
        for kind, truth in UNLIKE.items():
            found, samples = loop.cost(kind), loop.state.of_kind(kind).samples
            errors = [abs(found.time_ms(*sums) / truth.time_ms(*sums) - 1) for *sums, _ in samples]
            assert np.quantile(errors, 0.9) < 0.03, (seed, kind)
            for name, error in standard_errors(samples, truth).items():
                if error < 0.01:
                    assert getattr(found, name) == pytest.approx(getattr(truth, name), rel=0.03), (seed, kind, name)
        assert not loop.decisions[max(loop.decisions)].slow


def standard_errors(samples: tuple[Sample, ...], truth: Cost) -> dict[str, float]:
    """Return the relative standard error of each coefficient under 5 % noise, by the Fisher information."""
    rows = np.array([[squares, tokens, 1.0] for squares, tokens, _ in samples])
    shares = rows * [truth.a, truth.b, truth.c] / (rows @ [truth.a, truth.b, truth.c])[:, None]
    told = shares.any(axis=0)
    covariance = np.linalg.inv(shares[:, told].T @ shares[:, told])
    names = [name for name, is_told in zip("abc", told, strict=True) if is_told]
    return dict(zip(names, 0.05 * np.sqrt(np.diag(covariance)), strict=True))


@pytest.mark.parametrize("name", sorted(builtin_profiles()))
def test_the_coefficients_of_shipped_profiles_are_found_again_from_other_ones(name: str) -> None:
    generator = np.random.default_rng(3)
    for layout in builtin_profiles()[name].layouts[::3]:
        truth = Cost(layout.a_ms_per_token2, layout.b_ms_per_token, layout.c_ms)
        samples = []
        for _ in range(200):
            length = int(np.exp(generator.uniform(np.log(64), np.log(32_768))))
            num = int(generator.integers(1, max(2, 16_384 // length)))
            squares, tokens = float(num * length**2), float(num * length)
            factor = generator.lognormal(0, 0.05) * (10.0 if generator.random() < 0.01 else 1.0)
            samples.append((squares, tokens, truth.time_ms(squares, tokens) * factor))
        found = believed_cost(samples, Cost(truth.a * 1.4, truth.b * 0.7, truth.c * 1.2))
        errors = standard_errors(tuple(samples), truth)
        for coefficient, error in errors.items():
            if error < 0.01:
                assert getattr(found, coefficient) == pytest.approx(getattr(truth, coefficient), rel=0.03)


def test_samples_that_are_all_alike_scale_what_was_registered() -> None:
    machines = Machines({WIDE: Cost(5e-6, 0.02, 9.0)}, outliers=0.0, noise=0.0)
    run = machines.run(0, WIDE, range(8), [[2048] * 4] * 20)
    found = believed_cost(run.samples, COSTS[WIDE])
    ratio = found.time_ms(4 * 2048**2, 8192) / COSTS[WIDE].time_ms(4 * 2048**2, 8192)
    for name in "abc":
        assert getattr(found, name) == pytest.approx(ratio * getattr(COSTS[WIDE], name), rel=0.02)


def test_what_is_measured_as_predicted_makes_no_version() -> None:
    machines, loop = Machines(dict(COSTS), noise=0.0, outliers=0.0), Loop(registered())
    for iteration in range(20):
        loop.take(step(machines, iteration))
    assert not loop.decisions
    assert loop.state.num_iterations == 20


@pytest.mark.parametrize("seed", range(3))
def test_a_rank_that_becomes_slow_is_followed_within_ten_iterations_and_let_go_as_fast(seed: int) -> None:
    machines, loop = Machines(dict(COSTS), generator=np.random.default_rng(seed)), Loop(registered())
    for iteration in range(20):
        loop.take(step(machines, iteration))
    assert not loop.slow()
    machines.factors = {11: 2.0}
    for iteration in range(20, 30):
        loop.take(step(machines, iteration))
    assert loop.slow().keys() == set(range(8, 16))  # the replica that it is in
    assert set(loop.slow().values()) <= {1.8, 1.9, 2.0, 2.1, 2.2}
    machines.factors = {}
    for iteration in range(30, 40):
        loop.take(step(machines, iteration))
    assert not loop.slow()
    assert loop.cost(WIDE).time_ms(2048.0**2, 2048.0) == pytest.approx(COSTS[WIDE].time_ms(2048.0**2, 2048.0), rel=0.04)


def test_a_type_that_becomes_slow_as_a_whole_is_followed_within_ten_iterations_and_told() -> None:
    machines, loop = Machines(dict(COSTS)), Loop(registered())
    for iteration in range(50):
        if iteration == 15:
            machines.costs = slower(COSTS, 2.0)
        if iteration == 40:
            machines.costs = dict(COSTS)
        loop.take(step(machines, iteration))
        if iteration == 25:
            assert loop.cost(WIDE).b == pytest.approx(2 * COSTS[WIDE].b, rel=0.1)
            assert loop.cost(HALF).b == pytest.approx(2 * COSTS[HALF].b, rel=0.1)
        if iteration == 35:
            assert loop.state.of_device("gpu").is_drifting
        assert not loop.slow()
    assert loop.cost(WIDE).b == pytest.approx(COSTS[WIDE].b, rel=0.1)
    assert not loop.state.of_device("gpu").is_drifting


def test_layouts_that_never_ran_follow_those_that_did() -> None:
    machines, loop = Machines(slower(COSTS, 1.5)), Loop(registered())
    for iteration in range(15):
        loop.take([machines.run(iteration, WIDE, range(8), machines.batches(4))])
    assert loop.cost(HALF).b == pytest.approx(1.5 * COSTS[HALF].b, rel=0.08)
    assert loop.cost(HALF).a / COSTS[HALF].a == pytest.approx(loop.cost(HALF).b / COSTS[HALF].b)


@pytest.mark.parametrize("what", ["one micro-batch", "one replica", "one iteration", "two iterations apart"])
def test_what_happens_once_changes_nothing(what: str) -> None:
    machines, loop = Machines(dict(COSTS), noise=0.01, outliers=0.0), Loop(registered())
    for iteration in range(40):
        runs = step(machines, iteration)
        if iteration == 20 or (iteration == 25 and what == "two iterations apart"):
            hit = {"one micro-batch": [(0, 0)], "one replica": [(0, n) for n in range(3)]}
            for replica, number in hit.get(what, [(r, n) for r in range(5) for n in range(3)]):
                samples = list(runs[replica].samples)
                squares, tokens, time_ms = samples[number]
                samples[number] = (squares, tokens, 10 * time_ms)
                runs[replica] = replace(runs[replica], samples=tuple(samples))
        loop.take(runs)
        assert not loop.slow()
    for kind in COSTS:
        usual = loop.state.of_kind(kind).samples
        for squares, tokens, _ in usual:
            assert loop.cost(kind).time_ms(squares, tokens) == pytest.approx(
                COSTS[kind].time_ms(squares, tokens), rel=0.03
            )


def test_replicas_that_change_places_tell_which_rank_of_them_is_slow() -> None:
    machines, loop = Machines(dict(COSTS), {11: 2.0}), Loop(registered())
    generator = np.random.default_rng(0)
    for iteration in range(30):
        places = np.split(generator.permutation(32), 8)
        runs = [machines.run(iteration, HALF, sorted(map(int, ranks)), machines.batches(3)) for ranks in places]
        loop.take(runs)
    assert loop.slow().keys() == {11}


def test_a_lone_replica_of_its_kind_is_compared_with_the_other_kinds_once_its_cost_is_known() -> None:
    machines, loop = Machines(UNLIKE), Loop(registered())
    places: list[tuple[Kind, range]] = [(WIDE, range(8)), (HALF, range(8, 12)), (HALF, range(12, 16))]
    for iteration in range(30):
        machines.factors = {3: 1.7} if iteration >= 20 else {}
        loop.take([machines.run(iteration, kind, ranks, machines.batches(3)) for kind, ranks in places])
        assert iteration >= 20 or not loop.slow()
    assert loop.slow().keys() == set(range(8))


def test_a_slow_rank_that_runs_nothing_any_more_is_tried_again() -> None:
    machines, loop = Machines(dict(COSTS), {11: 3.0}), Loop(registered())
    for iteration in range(8):
        loop.take(step(machines, iteration))
    assert 11 in loop.slow()
    for iteration in range(8, 8 + FORGET_AFTER + 4):
        loop.take([run for run in step(machines, iteration, 1) if 11 not in run.ranks])
    assert not loop.slow()


def test_ranks_may_report_one_by_one() -> None:
    whole, single = Loop(registered()), Loop(registered())
    one, other = Machines(dict(COSTS), {11: 2.0}), Machines(dict(COSTS), {11: 2.0})
    for iteration in range(15):
        whole.take(step(one, iteration))
        for run in step(other, iteration):
            single.take([run])
    assert single.slow().keys() == whole.slow().keys() == set(range(8, 16))
    assert single.state.num_iterations == 15


def test_of_several_reports_of_a_replica_the_slowest_counts() -> None:
    machines = Machines(dict(COSTS), noise=0.0, outliers=0.0)
    run = machines.run(0, WIDE, range(8), machines.batches(3))
    faster = replace(run, samples=tuple((squares, tokens, time_ms / 2) for squares, tokens, time_ms in run.samples))
    for reports in ([run, faster], [faster, run]):
        state = LearnerState()
        for number, report in enumerate(reports):
            state = observe(state, registered(), [report], number)
        assert state.recent == (run,)


def test_a_state_that_was_written_down_goes_on_as_if_it_had_not_been() -> None:
    written: TypeAdapter[LearnerState] = TypeAdapter(LearnerState)
    kept, read = Loop(registered()), Loop(registered())
    for iteration in range(20):
        runs = step(Machines(UNLIKE, {3: 2.0}, generator=np.random.default_rng(iteration)), iteration)
        kept.take(runs)
        read.take(runs)
        read.state = written.validate_json(written.dump_json(read.state))
        assert read.state == kept.state
    assert read.slow().keys() == set(range(8))


def test_times_of_what_the_job_does_not_have_are_left_out() -> None:
    strange = Run(0, Kind("other", WIDE.layout), tuple(range(8)), ((1.0, 1.0, 1.0),))
    assert observe(LearnerState(), registered(), [strange], 7) == LearnerState(cursor=7)


def test_rare_lengths_are_not_crowded_out() -> None:
    rare = [(float(s * s), float(s), 1.0) for s in (100, 30_000)]
    usual = [(float(8 * s * s), float(8 * s), float(number)) for number, s in enumerate(range(1000, 2000))]
    held = keep(tuple(rare), usual)
    assert len(held) <= MAX_SAMPLES
    assert set(rare) <= set(held)
    buckets: dict[tuple[int, int], list[float]] = {}
    for sample in held:
        buckets.setdefault(bucket_of(sample), []).append(sample[2])
    assert max(map(len, buckets.values())) <= MAX_IN_BUCKET
    assert all(times == sorted(times) for times in buckets.values())
    assert held[-1] == usual[-1]


@pytest.mark.parametrize(("ranks", "text"), [([3], "3"), ([0, 1, 2, 7], "0-2,7"), ([8, 9, 1], "1,8-9"), ([], "")])
def test_ranks_are_written_as_people_do(ranks: list[int], text: str) -> None:
    assert spans(ranks) == text


@pytest.mark.parametrize("time_ms", [0.0, 5e-324, 1e-300, 1e-7, 1e9, 1e15, 1e308])
def test_times_that_cannot_be_teach_nothing_and_keep_no_others_from_teaching(time_ms: float) -> None:
    machines, loop, absurd = Machines(COSTS, outliers=0.0), Loop(registered()), Loop(registered())
    for iteration in range(12):
        runs = step(machines, iteration)
        loop.take(runs)
        absurd.take(
            [
                replace(run, samples=(*run.samples, (*run.samples[0][:2], time_ms)) if iteration % 2 else run.samples)
                for run in runs
            ]
        )
    assert absurd.state == loop.state


@pytest.mark.parametrize("time_ms", [1e-6, 1.0, 1e8])
def test_the_shortest_and_longest_times_that_can_be_are_learned(time_ms: float) -> None:
    machines, loop = Machines(COSTS), Loop(registered())
    for iteration in range(12):
        runs = step(machines, iteration)
        loop.take([replace(run, samples=tuple((*sums, time_ms) for *sums, _ in run.samples)) for run in runs])
    for kind in COSTS:
        assert loop.cost(kind).time_ms(2048.0**2, 2048.0) == pytest.approx(time_ms, rel=0.05)
    written = TypeAdapter(LearnerState)
    assert written.validate_json(written.dump_json(loop.state)) == loop.state
