"""One launch of three real ranks runs every scenario; the tests look at what they report."""

import dataclasses
import functools
import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from plan_factory import make_plan, random_plan
from rank_group import run_ranks
from reference import reference_step
from scenarios import (
    CONFIG,
    MEDDLINGS,
    SEED,
    Report,
    Scenario,
    flat_weights,
    make_optimizer,
    make_tokens,
    run_and_share,
)
from torch import Tensor

from planner_client.contract import Plan
from worker_agent.executor.model import Decoder, DecoderConfig

WORLD_SIZE = 3
LENGTHS = {"rank-0": [11, 3, 1, 8, 3], "rank-1": [30, 3, 2, 1], "rank-2": [5, 5, 17, 40]}
HELD = {source: make_tokens(lengths, seed) for seed, (source, lengths) in enumerate(LENGTHS.items())}
TOLERANCE = 1e-9

Names = tuple[str, ...]


def arrival_order_plan() -> Plan:
    """Every rank keeps what it holds, one sequence a micro-batch."""
    return make_plan([[[(source, length, 1)] for length in lengths] for source, lengths in LENGTHS.items()])


def random_plans() -> dict[str, Plan]:
    return {
        f"random plan {seed}, {num_replicas} replicas, alignment {alignment}": random_plan(
            LENGTHS, num_replicas, seed, alignment=alignment, ranks=[[2], [0], [1]][:num_replicas]
        )
        for seed, (num_replicas, alignment) in enumerate(itertools.product((3, 2, 1), (1, 8)))
    }


WHOLE_BATCH = {"arrival order": arrival_order_plan(), **random_plans()}
SMALL = {"rank-0": make_tokens([11], 7), "rank-1": make_tokens([101], 8)}
ELEVEN_AND_101 = make_plan([[[("rank-0", 11, 1)]], [[("rank-1", 101, 1)]]])
SWITCHING = tuple(WHOLE_BATCH.values())[:4]
NOTHING = make_plan([[], []])
ONLY_SINGLES = make_plan([[[("rank-0", 1, 1)]], [[("rank-1", 1, 2)]]])
SINGLES = {"rank-0": make_tokens([1], 1), "rank-1": make_tokens([1, 1], 2)}
DROPPING = make_plan([[[("rank-0", 3, 1), ("rank-1", 4, 1)]]], dropped=[("rank-0", 9, 1), ("rank-0", 3, 1)])
DROPPED_FROM = {"rank-0": make_tokens([9, 3, 3], 4), "rank-1": make_tokens([4], 5)}
ELSEWHERE = make_plan([[[("node-a", 6, 1), ("node-b", 4, 1)]], [[("node-b", 4, 1)]]])
ELSEWHERE_HELD = {"node-a": make_tokens([6], 1), "node-b": make_tokens([4, 4], 2)}

TWO_ENTRIES = make_plan([[[("rank-0", 7, 1), ("rank-1", 9, 1)]]])
TWO_ENTRIES_HELD = {"rank-0": make_tokens([7], 5), "rank-1": make_tokens([9], 6)}
SCENARIOS: dict[str, Scenario] = {
    **{name: Scenario((plan,), HELD) for name, plan in WHOLE_BATCH.items()},
    "tied embeddings": Scenario(
        (WHOLE_BATCH["arrival order"],), HELD, config=dataclasses.replace(CONFIG, tied_embeddings=True)
    ),
    "fp32": Scenario((WHOLE_BATCH["arrival order"],), HELD, dtype=torch.float32),
    "11 and 101 tokens": Scenario((ELEVEN_AND_101,), SMALL),
    "another plan every iteration": Scenario(SWITCHING, HELD),
    "no sequences": Scenario((NOTHING,), {}),
    "only sequences of one token": Scenario((ONLY_SINGLES,), SINGLES),
    "dropped sequences": Scenario((DROPPING,), DROPPED_FROM),
    "two sources on the last rank": Scenario(
        (ELSEWHERE,), ELSEWHERE_HELD, rank_of_source={"node-a": 2, "node-b": 2}, held_by_rank={0: [], 1: []}
    ),
    "different plans": Scenario((ELEVEN_AND_101,), SMALL, plan_by_rank={1: WHOLE_BATCH["arrival order"]}),
    "other sequences than planned": Scenario((ELEVEN_AND_101,), SMALL, held_by_rank={1: make_tokens([100], 0)}),
    "a source of another rank": Scenario((ELEVEN_AND_101,), SMALL, held_by_rank={0: {"rank-1": SMALL["rank-1"]}}),
    "a token id outside the vocabulary": Scenario((ELEVEN_AND_101,), SMALL, held_by_rank={0: [torch.full((11,), 23)]}),
    "sequences that are no token ids": Scenario((ELEVEN_AND_101,), SMALL, held_by_rank={0: [torch.zeros(11)]}),
    "a layout that does not run": Scenario(
        (make_plan([[[("rank-0", 11, 1), ("rank-1", 101, 1)]]], ranks=[[0, 1]], layout=(2, 1, 1)),), SMALL
    ),
    "a forward that raises on one rank": Scenario((ELEVEN_AND_101,), SMALL, broken_rank=1),
    "sources held elsewhere by one rank's account": Scenario(
        (ELEVEN_AND_101,), SMALL, rank_of_source_by_rank={2: {"rank-0": 0, "rank-1": 2}}, held_by_rank={2: []}
    ),
    "a gradient that overflows on one rank": Scenario((ELEVEN_AND_101,), SMALL, overflowing_rank=0),
    "a weight that is not a number": Scenario((ELEVEN_AND_101,), SMALL, poisoned=True),
    **{
        f"meddling: {name}": Scenario((TWO_ENTRIES, TWO_ENTRIES), TWO_ENTRIES_HELD, meddling=name) for name in MEDDLINGS
    },
    "and the group still works": Scenario((ELEVEN_AND_101,), SMALL),
}
OFFERS: dict[str, list[Plan | Exception | None]] = {
    "a plan": [None, ELEVEN_AND_101, None],
    "its own on every rank": [NOTHING, ELEVEN_AND_101, NOTHING],
    "a fault": [None, TimeoutError("the planner did not answer within 500 ms"), None],
    "nothing": [NOTHING, None, NOTHING],
    "a changed plan": [None, ELEVEN_AND_101.model_copy(update={"num_tokens": 5}), None],
}


@pytest.fixture(scope="module")
def launch(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[dict[str, Report], dict[str, tuple[str, str]]]]:
    folder: Path = tmp_path_factory.mktemp("three_ranks")
    ends = run_ranks(run_and_share, WORLD_SIZE, folder, SCENARIOS, OFFERS, 1)
    assert [end.raised for end in ends] == [None] * WORLD_SIZE
    return [end.returned for end in ends]


@pytest.fixture(scope="module")
def reports(launch: list[tuple[dict[str, Report], dict[str, tuple[str, str]]]]) -> dict[str, list[Report]]:
    return {name: [by_name[name] for by_name, _ in launch] for name in SCENARIOS}


@functools.cache
def expected(name: str) -> tuple[float, Tensor, list[float]]:
    """Loss, gradient and losses by sequence of a scenario's sequences, by independent code in this process."""
    return expected_of(SCENARIOS[name].held, SCENARIOS[name].config)


def expected_of(held: dict[str, list[Tensor]], config: DecoderConfig = CONFIG) -> tuple[float, Tensor, list[float]]:
    model = Decoder(config, seed=SEED, dtype=torch.float64)
    return reference_step(model, [sequence for sequences in held.values() for sequence in sequences])


@pytest.mark.parametrize("name", [*WHOLE_BATCH, "11 and 101 tokens", "two sources on the last rank"])
def test_loss_and_gradient_are_the_full_batchs_whatever_the_plan(name: str, reports: dict[str, list[Report]]) -> None:
    loss, gradient, _ = expected("arrival order" if name in WHOLE_BATCH else name)
    for report in reports[name]:
        assert report.fault is None, report.message
        assert report.results[0].loss == pytest.approx(loss, abs=TOLERANCE)
        torch.testing.assert_close(report.gradients[0], gradient, rtol=0, atol=TOLERANCE)


def test_tied_embeddings_get_the_gradients_of_both_their_uses(reports: dict[str, list[Report]]) -> None:
    loss, gradient, _ = expected("tied embeddings")
    for report in reports["tied embeddings"]:
        assert report.results[0].loss == pytest.approx(loss, abs=TOLERANCE)
        torch.testing.assert_close(report.gradients[0], gradient, rtol=0, atol=TOLERANCE)


def test_fp32_agrees_to_its_own_accuracy(reports: dict[str, list[Report]]) -> None:
    loss, gradient, _ = expected("arrival order")
    for report in reports["fp32"]:
        assert report.gradients[0].dtype == torch.float32
        assert report.results[0].loss == pytest.approx(loss, rel=1e-5)
        torch.testing.assert_close(report.gradients[0].double(), gradient, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("name", WHOLE_BATCH)
def test_each_sequences_loss_returns_to_its_source_in_the_order_held(
    name: str, reports: dict[str, list[Report]]
) -> None:
    _, _, losses = expected("arrival order")
    begins = np.cumsum([0, *(len(sequences) for sequences in HELD.values())])
    for rank, report in enumerate(reports[name]):
        returned = report.results[0].sequence_losses
        assert list(returned) == [f"rank-{rank}"]
        np.testing.assert_allclose(
            returned[f"rank-{rank}"], losses[begins[rank] : begins[rank + 1]], rtol=0, atol=TOLERANCE
        )


def test_a_dropped_sequence_adds_nothing_and_has_no_loss(reports: dict[str, list[Report]]) -> None:
    kept = {"rank-0": [DROPPED_FROM["rank-0"][1]], "rank-1": DROPPED_FROM["rank-1"]}
    loss, gradient, losses = expected_of(kept)
    for report in reports["dropped sequences"]:
        assert report.results[0].loss == pytest.approx(loss, abs=TOLERANCE)
        torch.testing.assert_close(report.gradients[0], gradient, rtol=0, atol=TOLERANCE)
    returned = reports["dropped sequences"][0].results[0].sequence_losses["rank-0"]
    np.testing.assert_allclose(returned, [np.nan, losses[0], np.nan], atol=TOLERANCE)


def test_switching_plans_every_iteration_trains_like_one_process(reports: dict[str, list[Report]]) -> None:
    model = Decoder(CONFIG, seed=SEED, dtype=torch.float64)
    optimizer = make_optimizer(model)
    batch = [sequence for sequences in HELD.values() for sequence in sequences]
    losses = []
    for _ in SWITCHING:
        loss, _, _ = reference_step(model, batch)
        losses.append(loss)
        optimizer.step()
    assert losses[-1] < losses[0]
    for report in reports["another plan every iteration"]:
        assert [result.loss for result in report.results] == pytest.approx(losses, abs=TOLERANCE)
        torch.testing.assert_close(report.weights, flat_weights(model), rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("name", ["no sequences", "only sequences of one token"])
def test_without_a_target_the_loss_is_zero_and_no_rank_steps(name: str, reports: dict[str, list[Report]]) -> None:
    before = flat_weights(Decoder(CONFIG, seed=SEED, dtype=torch.float64))
    for report in reports[name]:
        assert report.fault is None, report.message
        assert report.results[0].loss == 0.0
        assert report.results[0].num_targets == 0
        assert torch.equal(report.weights, before)


def test_timings_say_for_each_replica_what_its_rank_measured(reports: dict[str, list[Report]]) -> None:
    name = "random plan 2, 2 replicas, alignment 1"
    plan = WHOLE_BATCH[name]
    idle = next(rank for rank in range(WORLD_SIZE) if all(rank not in replica.ranks for replica in plan.replicas))
    gathered = [report.timings[0] for report in reports[name]]
    assert gathered[0] == gathered[1] == gathered[2]
    assert gathered[0].digest == plan.digest
    assert reports[name][idle].results[0].timing is None
    for number, (replica, timing) in enumerate(zip(plan.replicas, gathered[0].replicas, strict=True)):
        own = reports[name][replica.ranks[0]].results[0]
        assert own.timing == timing
        assert timing.replica == number
        assert len(timing.micro_batch_ms) == len(replica.micro_batches)
        assert 0 < sum(timing.micro_batch_ms) <= timing.wall_ms <= own.wall_ms
        assert own.exchange_ms + own.compute_ms + own.reduce_ms + own.step_ms <= own.wall_ms


@pytest.mark.parametrize(
    ("name", "fault", "said"),
    [
        ("different plans", "PlanDisagreement", (ELEVEN_AND_101.digest, WHOLE_BATCH["arrival order"].digest)),
        ("other sequences than planned", "IterationFailed", ("rank 1: PlanMismatch", "length 100")),
        ("a source of another rank", "IterationFailed", ("rank 0: ValueError", "'rank-1'")),
        ("a token id outside the vocabulary", "IterationFailed", ("rank 0", "23", "0 to 22")),
        ("sequences that are no token ids", "IterationFailed", ("rank 0", "torch.float32")),
        ("a layout that does not run", "IterationFailed", ("2 of 3 ranks", "LayoutRefused", "(tp=2, cp=1, pp=1)")),
        ("a forward that raises on one rank", "IterationFailed", ("1 of 3 ranks", "rank 1", "ran out of memory")),
        (
            "sources held elsewhere by one rank's account",
            "PlanDisagreement",
            ("different terms", '"rank-1": 1', "rank 2 has", '"rank-1": 2', "same arguments on every rank"),
        ),
        ("a gradient that overflows on one rank", "NotFinite", ("a gradient is not finite", "iteration 0")),
        ("a weight that is not a number", "NotFinite", ("the loss is nan", "iteration 0", "did not step")),
        ("meddling: text that is not Unicode", "IterationFailed", ("rank 0: OSError", "cannot read")),
        ("meddling: a fault without a text", "IterationFailed", ("rank 0: Mute", "its text cannot be had")),
        ("meddling: an optimizer that raises", "IterationFailed", ("rank 1: MemoryError", "weights may differ now")),
        ("meddling: other weights on one rank", "PlanDisagreement", ("different terms", "weights_checksum")),
        ("meddling: a plan changed in memory", "PlanDisagreement", ("different plans",)),
        ("meddling: no plan", "PlanDisagreement", ("a dict and no plan",)),
        ("meddling: weights unfrozen", "IterationFailed", ("3 of 3 ranks", "build a new IterationRunner")),
        ("meddling: weights moved", "IterationFailed", ("3 of 3 ranks", "build a new IterationRunner")),
    ],
)
def test_what_stops_one_rank_stops_every_rank_with_the_same_fault_at_once(
    name: str, fault: str, said: Names, reports: dict[str, list[Report]]
) -> None:
    assert [report.fault for report in reports[name]] == [fault] * WORLD_SIZE
    assert len({report.message for report in reports[name]}) == 1
    for part in said:
        assert part in reports[name][0].message
    assert max(report.taken_s for report in reports[name]) < 20.0


def test_a_fault_leaves_the_weights_as_they_were(reports: dict[str, list[Report]]) -> None:
    before = flat_weights(Decoder(CONFIG, seed=SEED, dtype=torch.float64))
    for name in (
        "different plans",
        "other sequences than planned",
        "a forward that raises on one rank",
        "a gradient that overflows on one rank",
    ):
        assert all(torch.equal(report.weights, before) for report in reports[name])


def test_the_group_still_works_after_faults(reports: dict[str, list[Report]]) -> None:
    for report in reports["and the group still works"]:
        assert report.fault is None
        assert report.results[0].loss == reports["11 and 101 tokens"][0].results[0].loss


@pytest.mark.parametrize(
    ("offer", "got"),
    [
        ("a plan", ("plan", ELEVEN_AND_101.digest)),
        ("its own on every rank", ("plan", ELEVEN_AND_101.digest)),
        (
            "a fault",
            (
                "PlanningFailed",
                "no plan for this iteration: TimeoutError: the planner did not answer within 500 ms",
            ),
        ),
    ],
)
def test_every_rank_gets_the_deciding_ranks_plan_or_fault(
    offer: str, got: tuple[str, str], launch: list[tuple[dict[str, Report], dict[str, tuple[str, str]]]]
) -> None:
    assert [shared[offer] for _, shared in launch] == [got] * WORLD_SIZE


def test_a_deciding_rank_without_a_decision_is_a_fault_on_every_rank(
    launch: list[tuple[dict[str, Report], dict[str, tuple[str, str]]]],
) -> None:
    got = {shared["nothing"] for _, shared in launch}
    assert len(got) == 1
    fault, message = got.pop()
    assert fault == "PlanningFailed"
    assert "neither a plan nor a fault" in message


def test_a_plan_changed_on_its_way_is_refused_on_every_rank(
    launch: list[tuple[dict[str, Report], dict[str, tuple[str, str]]]],
) -> None:
    got = {shared["a changed plan"] for _, shared in launch}
    assert len(got) == 1
    fault, message = got.pop()
    assert fault == "IterationFailed"
    assert "3 of 3 ranks failed while reading the shared plan" in message
    assert "changed on its way" in message
