from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner_service.core.schedules import (
    Interleaved,
    OneForwardOneBackward,
    Operation,
    OperationKind,
    Schedule,
    Timeline,
    ZeroBubble,
    run,
)
from planner_service.core.simulate import simulate_1f1b

F, B = OperationKind.FORWARD, OperationKind.BACKWARD
I, W = OperationKind.INPUT_GRADIENT, OperationKind.WEIGHT_GRADIENT  # noqa: E741 - as the published figures write them
EVERY = (OneForwardOneBackward(), Interleaved(2), Interleaved(3), ZeroBubble())
TIMES = st.lists(st.integers(0, 1000).map(float), min_size=1, max_size=12)


def _padded(schedule: Schedule, num_stages: int, times: list[float]) -> list[float]:
    """Repeat the first micro-batch until an interleaved schedule has a multiple of the stages."""
    needed = -len(times) % num_stages if isinstance(schedule, Interleaved) else 0
    return times + times[:1] * needed


def _waits_for(operation: Operation, stage: int, num_stages: int, num_chunks: int) -> list[tuple[int, Operation]]:
    """What an operation needs from others, as (stage, operation)."""
    kind, micro_batch, chunk = operation
    if kind is W:
        return [(stage, Operation(I, micro_batch, chunk))]
    if kind is F:
        before = (stage - 1, chunk) if stage else (num_stages - 1, chunk - 1)
        return [(before[0], Operation(F, micro_batch, before[1]))] if before[1] >= 0 else []
    after = (stage + 1, chunk) if stage < num_stages - 1 else (0, chunk + 1)
    own = [(stage, Operation(F, micro_batch, chunk))]
    return [*own, (after[0], Operation(kind, micro_batch, after[1]))] if after[1] < num_chunks else own


def _longest_chain_ms(schedule: Schedule, num_stages: int, times: list[float]) -> Fraction:
    """Brute force, in exact numbers: raise every end to what it waits for until nothing changes."""
    share = {F: Fraction(1, 3), B: Fraction(2, 3), I: Fraction(1, 3), W: Fraction(1, 3)}
    waits: dict[tuple[int, Operation], list[tuple[int, Operation]]] = {}
    for stage, operations in enumerate(schedule.operations(num_stages, len(times))):
        for position, operation in enumerate(operations):
            before = [(stage, operations[position - 1])] if position else []
            waits[stage, operation] = before + _waits_for(operation, stage, num_stages, schedule.num_chunks)
    ends = dict.fromkeys(waits, Fraction(0))
    changed = True
    while changed:
        changed = False
        for node, needed in waits.items():
            took = share[node[1].kind] * int(times[node[1].micro_batch]) / schedule.num_chunks
            end = max((ends[other] for other in needed), default=Fraction(0)) + took
            changed |= end != ends[node]
            ends[node] = end
    return max(ends.values())


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(EVERY), st.integers(1, 6), TIMES)
def test_a_timeline_is_what_the_schedule_and_its_dependencies_say(
    schedule: Schedule, num_stages: int, times: list[float]
) -> None:
    """Invariants:

    1. The total is the longest chain of operations that wait for each other.
    2. Each stage runs its operations in its order, one at a time.
    3. Each stage computes every micro-batch's whole time, no more and no less.
    4. The share of bubbles is what is left.
    """
    times = _padded(schedule, num_stages, times)
    timeline = run(schedule, num_stages, times)
    assert timeline.total_ms == pytest.approx(float(_longest_chain_ms(schedule, num_stages, times)))
    for stage, operations in enumerate(schedule.operations(num_stages, len(times))):
        spans = [span for span in timeline.spans if span.stage == stage]
        assert tuple(Operation(span.kind, span.micro_batch, span.chunk) for span in spans) == operations
        assert all(first.end_ms <= second.begin_ms for first, second in pairwise(spans))
    assert timeline.busy_ms == pytest.approx([sum(times)] * num_stages)
    if timeline.total_ms:
        assert timeline.bubble_share == pytest.approx(1 - sum(times) / timeline.total_ms, abs=1e-9)


@settings(max_examples=300, deadline=None)
@given(st.integers(1, 9), st.lists(st.floats(0, 1e6), max_size=40))
def test_the_fast_1f1b_gives_the_very_number_of_the_general_simulator(num_stages: int, times: list[float]) -> None:
    general = run(OneForwardOneBackward(), num_stages, times).total_ms
    if num_stages == 1:  # one stage adds whole micro-batches, not their forwards and backwards
        assert simulate_1f1b(1, times) == pytest.approx(general)
    else:
        assert simulate_1f1b(num_stages, times) == general


def test_equal_micro_batches_take_the_published_formulas() -> None:
    time = 30.0
    for num_stages in (1, 2, 4, 8):
        for count in (num_stages, 2 * num_stages, 5 * num_stages):
            ideal, bubble = count * time, (num_stages - 1) * time
            equal = [time] * count
            assert run(OneForwardOneBackward(), num_stages, equal).total_ms == pytest.approx(ideal + bubble)
            assert run(ZeroBubble(), num_stages, equal).total_ms == pytest.approx(ideal + bubble / 3)
            for chunks in (2, 3, 4):
                interleaved = run(Interleaved(chunks), num_stages, equal).total_ms
                assert interleaved == pytest.approx(ideal + bubble / chunks)


def test_interleaved_on_two_stages_by_hand() -> None:
    first, second = Interleaved(2).operations(2, 2)
    assert first == tuple(
        Operation(*entry)
        for entry in [(F, 0, 0), (F, 1, 0), (F, 0, 1), (F, 1, 1), (B, 0, 1), (B, 1, 1), (B, 0, 0), (B, 1, 0)]
    )
    assert second == tuple(
        Operation(*entry)
        for entry in [(F, 0, 0), (F, 1, 0), (F, 0, 1), (B, 0, 1), (F, 1, 1), (B, 1, 1), (B, 0, 0), (B, 1, 0)]
    )
    # Forwards of a chunk take 1 and 2, backwards 2 and 4. Stage 1: F 1-2, 3-5, F 5-6 (chunk 1 of micro-batch 0 comes
    # from stage 0 at 4), B 6-8, F 8-10, B 10-14, then B0 of chunk 0 waits for stage 0 (8-10): 14-16, B1 (14-18): 18-22.
    # Stage 0: B0 16-18, B1 22-26.
    assert run(Interleaved(2), 2, [6.0, 12.0]).total_ms == 26.0


def test_zero_bubble_on_two_stages_by_hand() -> None:
    first, second = ZeroBubble().operations(2, 3)
    assert " ".join(f"{kind.name[0]}{index}" for kind, index, _ in first) == "F0 F1 I0 W0 F2 I1 W1 I2 W2"
    assert " ".join(f"{kind.name[0]}{index}" for kind, index, _ in second) == "F0 I0 F1 I1 W0 F2 I2 W1 W2"
    # Parts take 1, 2 and 1. Stage 1: F0 1-2, I0 2-3, F1 3-5, I1 5-7, W0 7-8, F2 8-9, I2 9-10, W1 10-12, W2 12-13.
    # Stage 0: F0 0-1, F1 1-3, I0 3-4, W0 4-5, F2 5-6, I1 7-9, W1 9-11, I2 11-12, W2 12-13.
    timeline = run(ZeroBubble(), 2, [3.0, 6.0, 3.0])
    assert timeline.total_ms == 13.0
    assert [span.begin_ms for span in timeline.spans if span.stage == 1] == [1, 2, 3, 5, 7, 8, 9, 10, 12]


def test_zero_bubble_is_shorter_than_1f1b_and_holds_no_more_micro_batches_than_its_first_stage() -> None:
    for num_stages in (2, 4, 8):
        for count in (1, num_stages, 3 * num_stages):
            times = [float(1 + index * 7 % 5) for index in range(count)]
            assert run(ZeroBubble(), num_stages, times).total_ms <= simulate_1f1b(num_stages, times)
            for operations in ZeroBubble().operations(num_stages, count):
                held = most = 0
                for operation in operations:
                    held += {F: 1, I: 0, W: -1}[operation.kind]
                    most = max(most, held)
                assert most <= num_stages


def test_every_stage_runs_every_part_of_every_micro_batch_once() -> None:
    for schedule in EVERY:
        for num_stages in (1, 2, 3, 5):
            for groups in (1, 2, 3):
                count = num_stages * groups
                kinds = (F, I, W) if isinstance(schedule, ZeroBubble) else (F, B)
                expected = sorted(
                    (kind.name, index, chunk)
                    for kind in kinds
                    for index in range(count)
                    for chunk in range(schedule.num_chunks)
                )
                for operations in schedule.operations(num_stages, count):
                    assert sorted((kind.name, index, chunk) for kind, index, chunk in operations) == expected


def test_an_interleaved_schedule_says_what_numbers_it_needs() -> None:
    with pytest.raises(ValueError, match="6 micro-batches are not a multiple of 4 stages"):
        run(Interleaved(2), 4, [1.0] * 6)
    with pytest.raises(ValueError, match="at least 2 chunks for each stage, not 1"):
        Interleaved(1)


def test_operations_that_wait_for_each_other_are_an_error_and_no_hang() -> None:
    class Backwards(OneForwardOneBackward):
        def operations(self, num_stages: int, num_micro_batches: int) -> tuple[tuple[Operation, ...], ...]:
            return tuple(held[::-1] for held in super().operations(num_stages, num_micro_batches))

    with pytest.raises(ValueError, match="stage 0 waits for ever for what"):
        run(Backwards(), 2, [1.0, 1.0])


def test_no_micro_batches_take_no_time() -> None:
    for schedule in EVERY:
        assert run(schedule, 4, []) == Timeline(4, ())
        assert run(schedule, 4, []).bubble_share == 0.0
