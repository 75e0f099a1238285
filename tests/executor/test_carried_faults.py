"""A rank that fails anywhere in its part of an iteration takes all others along, at once and with its own cause."""

import pytest
import torch
from injected_faults import HELD, INJECTIONS, TIMEOUT_S, Seen, run_and_build
from rank_group import run_ranks
from reference import reference_step
from scenarios import CONFIG, SEED

from worker_agent.executor.carried import CarriedFault, lacks_memory
from worker_agent.executor.faults import RankLost
from worker_agent.executor.model import Decoder

WORLD_SIZE = 4
pytestmark = pytest.mark.timeout(180)


Both = tuple[dict[str, Seen], tuple[str, str, float]]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> list[Both]:
    ends = run_ranks(run_and_build, WORLD_SIZE, tmp_path_factory.mktemp("ranks"), limit_s=150)
    assert not [end.raised for end in ends if end.raised], next(end.raised for end in ends if end.raised)
    return [end.returned for end in ends]


def expected_loss() -> float:
    model = Decoder(CONFIG, seed=SEED, dtype=torch.float64)
    return reference_step(model, [sequence for sequences in HELD.values() for sequence in sequences])[0]


@pytest.mark.parametrize("name", INJECTIONS)
def test_all_ranks_hear_of_one_ranks_fault_and_go_on(name: str, seen: list[Both]) -> None:
    """Hold wherever a rank fails by itself.

    1. Every rank raises the same `IterationFailed`, which names that rank alone and what it raised.
    2. No rank waits for the timeout.
    3. No weight has changed, and the next iteration runs as if nothing had been.
    """
    injection, reports = INJECTIONS[name], [by_name[name] for by_name, _ in seen]
    assert {report.fault for report in reports} == {"IterationFailed"}, reports[injection.rank].message
    assert len({report.message for report in reports}) == 1
    assert f"1 of {WORLD_SIZE} ranks failed" in reports[0].message
    assert f"rank {injection.rank}: " in reports[0].message
    assert f"{type(injection.fault).__name__}: {injection.fault}" in reports[0].message
    assert max(report.taken_s for report in reports) < TIMEOUT_S / 2
    for report in reports:
        assert torch.equal(report.weights_before, report.weights_after)
        assert report.next_loss == pytest.approx(expected_loss(), abs=1e-9)


def test_a_runner_that_one_rank_cannot_build_is_refused_on_every_rank(seen: list[Both]) -> None:
    assert len({built for _, built in seen}) == 1
    fault, message, loss = seen[0][1]
    assert fault == "IterationFailed"
    assert "rank 1: PartFailed: making the process group of ranks [0, 1, 2, 3] raised OutOfMemoryError" in message
    assert loss == pytest.approx(expected_loss(), abs=1e-9)


def test_the_first_fault_is_kept_and_what_was_held_when_it_was_raised_is_free() -> None:
    carried = CarriedFault(torch.device("cpu"))
    freed = []

    class Held:
        def __del__(self) -> None:
            freed.append(True)

    def fail() -> str:
        held = Held()
        raise MemoryError(f"no room beside {type(held).__name__}")

    assert carried.attempt("trying", lambda: "done", lambda: "stood in") == "done"
    assert carried.attempt("trying", fail, lambda: "stood in") == "stood in"
    assert freed
    assert carried.attempt("trying again", lambda: "done", lambda: "stood in") == "stood in"
    assert str(carried.fault) == "trying raised MemoryError: no room beside Held"
    assert "in fail" in carried.fault.__notes__[0]


def test_the_loss_of_another_rank_is_not_carried() -> None:
    carried = CarriedFault(torch.device("cpu"))

    def lose() -> None:
        raise RankLost("gone")

    with pytest.raises(RankLost):
        carried.attempt("trying", lose, lambda: None)
    assert carried.fault is None


@pytest.mark.parametrize(
    "fault",
    [
        torch.OutOfMemoryError("x"),
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes"),
    ],
)
def test_a_lack_of_memory_is_told_whatever_its_type(fault: Exception) -> None:
    assert lacks_memory(fault)
    assert not lacks_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
