"""What goes wrong on one rank, and what all ranks make of it."""

import pytest
import torch
from launched import DATA_PARALLEL, ELEVEN_AND_101, FAULTS, SCENARIOS, WORLD_SIZE
from reference import flat_weights
from scenarios import SEED, Report

from worker_agent.executor.model import Decoder

pytestmark = pytest.mark.timeout(300)
Names = tuple[str, ...]


@pytest.mark.parametrize(
    ("name", "fault", "said"),
    [
        ("different plans", "PlanDisagreement", (ELEVEN_AND_101.digest, DATA_PARALLEL["arrival order"].digest)),
        ("other sequences than planned", "IterationFailed", ("rank 1: PlanMismatch", "length 100")),
        ("other sequences than planned, found ahead", "IterationFailed", ("rank 1: PlanMismatch", "length 100")),
        (
            "different plans, found ahead",
            "PlanDisagreement",
            (ELEVEN_AND_101.digest, DATA_PARALLEL["arrival order"].digest),
        ),
        ("no plan on one rank, found ahead", "PlanDisagreement", ("a NoneType and no plan", ELEVEN_AND_101.digest)),
        ("one rank prepared another plan than it runs", "PlanDisagreement", ("a NoneType and no plan",)),
        ("no plan on any rank", "IterationFailed", ("4 of 4 ranks", "a NoneType was given in place of a plan")),
        (
            "groups left out",
            "IterationFailed",
            ("2 of 4 ranks", "GroupMismatch", "source 'rank-0'", "the plan names 1"),
        ),
        ("groups of another source", "IterationFailed", ("rank 0", "names sequence 1 but the source holds 1")),
        ("sequences that are no tensors", "IterationFailed", ("rank 0", "is a list; give each sequence as a flat")),
        ("no list of sequences", "IterationFailed", ("rank 0", "a int in place of sequences")),
        ("a source of another rank", "IterationFailed", ("rank 0: ValueError", "'rank-1'")),
        ("a token id outside the vocabulary", "IterationFailed", ("rank 0", "23", "0 to 22")),
        ("sequences that are no token ids", "IterationFailed", ("rank 0", "torch.float32")),
        ("context parallelism", "IterationFailed", ("4 of 4 ranks", "LayoutRefused", "(tp=1, cp=2, pp=1)", "cp=1")),
        ("heads that do not divide", "IterationFailed", ("4 of 4 ranks", "LayoutRefused", "4 attention heads")),
        (
            "more process groups than allowed",
            "IterationFailed",
            ("4 of 4 ranks", "LayoutRefused", "needs 2 process groups", "limit is 1", "max_process_groups"),
        ),
        (
            "a forward that raises on one rank",
            "IterationFailed",
            (
                "1 of 4 ranks failed while computing iteration 0",
                "rank 1: MicroBatchFailed: forward 0 of replica 1, stage 0, raised OutOfMemoryError",
                "the device ran out of memory",
                "101 tokens in 1 sequences (longest 101, limit 2147483647)",
                "predicted to take 0.0 ms",
                "bytes",
                "smaller max_tokens_per_micro_batch",
            ),
        ),
        (
            "sources held elsewhere by one rank's account",
            "PlanDisagreement",
            ("different terms", '"rank-1": 1', "rank 2 has", '"rank-1": 2', "same arguments on every rank"),
        ),
        ("a gradient that overflows on one rank", "NotFinite", ("a gradient is not finite", "iteration 0")),
        ("a weight that is not a number", "NotFinite", ("the loss is nan", "iteration 0", "did not step")),
        ("text that is not Unicode", "IterationFailed", ("raised OSError", "cannot read")),
        ("a fault without a text", "IterationFailed", ("raised Mute", "its text cannot be had")),
        ("meddling: an optimizer that raises", "IterationFailed", ("rank 1: MemoryError", "weights may differ now")),
        ("meddling: another model on one rank", "PlanDisagreement", ("different terms", "num_layers=2")),
        ("meddling: a plan changed in memory", "PlanDisagreement", ("different plans",)),
        ("meddling: no plan", "PlanDisagreement", ("a dict and no plan",)),
        ("a first stage that raises at once", "IterationFailed", ("rank 0: MicroBatchFailed: forward 0 of replica 0",)),
        ("a first stage that raises in the second forward", "IterationFailed", ("rank 1", "forward 1", "4 tokens")),
        ("a last stage that raises in the second forward", "IterationFailed", ("rank 3", "forward 1", "stage 1")),
        ("a last stage that raises in a backward", "IterationFailed", ("rank 2", "backward 1", "stage 1")),
        ("a first stage that raises in the last backward", "IterationFailed", ("rank 0", "backward 2", "5 tokens")),
        ("an evaluation that raises", "IterationFailed", ("rank 3: MicroBatchFailed: forward 0", "stage 1")),
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
    assert not any(report.results for report in reports[name])


def test_every_fault_is_looked_at() -> None:
    marks = test_what_stops_one_rank_stops_every_rank_with_the_same_fault_at_once.pytestmark
    assert {name for name, *_ in marks[0].args[1]} == set(FAULTS)


def test_a_fault_leaves_the_weights_as_they_were(reports: dict[str, list[Report]]) -> None:
    for name in FAULTS:
        if "poisoned" in name or name.startswith("meddling") or SCENARIOS[name].poisoned:
            continue
        before = flat_weights(Decoder(SCENARIOS[name].config, seed=SEED, dtype=torch.float64))
        assert all(torch.equal(report.weights, before) for report in reports[name]), name


def test_the_group_still_works_after_faults(reports: dict[str, list[Report]]) -> None:
    for report in reports["and the group still works"]:
        assert report.fault is None
        assert report.results[0].loss == reports["11 and 101 tokens"][0].results[0].loss
