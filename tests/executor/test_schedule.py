import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker_agent.executor.schedule import (
    Message,
    Operation,
    Step,
    forward_only,
    one_forward_one_backward,
    with_messages,
)


def run_with_rendezvous(stages: list[tuple[Step, ...]]) -> list[list[Operation]]:
    """Run steps where a send waits for its receiver, as the strictest of transports do; fail if none can go on.

    A message passes when both sides have reached the step that holds it; a step is over when all its messages passed.
    """
    at = [0] * len(stages)
    passed: list[set[tuple[bool, Message]]] = [set() for _ in stages]
    done: list[list[Operation]] = [[] for _ in stages]
    before: list[int] = []
    while at != before:
        before = list(at)
        for stage, steps in enumerate(stages):
            if at[stage] == len(steps):
                continue
            for message in steps[at[stage]].sends:
                other = stage + 1 if message.to_next else stage - 1
                facing = Message(message.micro_batch, not message.to_next)
                if at[other] < len(stages[other]) and facing in stages[other][at[other]].receives:
                    passed[stage].add((True, message))
                    passed[other].add((False, facing))
        for stage, steps in enumerate(stages):
            if at[stage] < len(steps) and len(passed[stage]) == len(
                [*steps[at[stage]].sends, *steps[at[stage]].receives]
            ):
                operation = steps[at[stage]].operation
                done[stage] += [operation] if operation else []
                passed[stage].clear()
                at[stage] += 1
    assert at == [len(steps) for steps in stages], "the stages wait for each other for ever"
    return done


@given(st.integers(1, 8), st.integers(0, 20))
def test_one_forward_one_backward_runs_every_micro_batch_without_locking_up(
    num_stages: int, num_micro_batches: int
) -> None:
    """Hold for any number of stages and micro-batches, fewer than stages included.

    1. Every stage runs every micro-batch forward once, then backward once, both in order.
    2. No stage has more micro-batches under way than there are stages from it on.
    3. Even if every send waits for its receiver, no stage waits for ever.
    """
    stages = []
    for stage in range(num_stages):
        order = one_forward_one_backward(num_stages, stage, num_micro_batches)
        for kind in ("forward", "backward"):
            assert [one.micro_batch for one in order if one.kind == kind] == list(range(num_micro_batches))
        under_way = 0
        for operation in order:
            under_way += 1 if operation.kind == "forward" else -1
            assert 0 <= under_way <= num_stages - stage
        stages.append(with_messages(order, num_stages, stage))
    done = run_with_rendezvous(stages)
    assert [len(of_stage) for of_stage in done] == [2 * num_micro_batches] * num_stages


@given(st.integers(1, 6), st.integers(0, 9))
def test_evaluation_runs_every_micro_batch_forward(num_stages: int, num_micro_batches: int) -> None:
    steps = [with_messages(forward_only(num_micro_batches), num_stages, stage) for stage in range(num_stages)]
    assert run_with_rendezvous(steps) == [list(forward_only(num_micro_batches))] * num_stages


def test_the_middle_stage_of_three_hands_over_what_it_has_and_takes_what_it_needs() -> None:
    steps = with_messages(one_forward_one_backward(3, 1, 2), 3, 1)
    assert [str(step.operation) for step in steps] == ["forward 0", "forward 1", "backward 0", "backward 1", "None"]
    assert steps[2] == Step((Message(1, to_next=True),), (Message(0, to_next=True),), Operation("backward", 0))
    assert steps[4] == Step((Message(1, to_next=False),), (), None)


@pytest.mark.parametrize("stage", [0, 1])
def test_a_replica_without_micro_batches_has_no_steps(stage: int) -> None:
    assert with_messages(one_forward_one_backward(2, stage, 0), 2, stage) == ()
