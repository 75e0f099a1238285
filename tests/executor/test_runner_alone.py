"""What one rank's runner does by itself: equal plans, closing, inference mode, memory that it lets go."""

import gc
import weakref
from collections.abc import Iterator

import pytest
import torch
from launched import HELD
from plan_factory import make_plan, reseal
from reference import reference_step
from scenarios import CONFIG, SEED, make_optimizer, make_tokens

from planner_client.contract import GroupCount, Plan
from worker_agent.executor.compute_buffer import ComputeBuffer
from worker_agent.executor.exchange import SequenceExchange
from worker_agent.executor.faults import IterationFailed, RunnerClosed
from worker_agent.executor.layout import rank_roles
from worker_agent.executor.model import Decoder
from worker_agent.executor.parameters import ParameterTable
from worker_agent.executor.parts import ModelPart
from worker_agent.executor.routes import sequence_routes
from worker_agent.executor.runner import IterationRunner
from worker_agent.executor.shards import ShardedState

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("alone")]
TOLERANCE = 1e-9
PLAN = make_plan([[[("rank-0", 11, 1)]]], iteration=None)
TOKENS = HELD["rank-0"][:1]


def new_runner() -> IterationRunner:
    return IterationRunner(ShardedState(CONFIG, seed=SEED, dtype=torch.float64, make_optimizer=make_optimizer))


@pytest.fixture
def without_collector() -> Iterator[None]:
    """Free only what nothing refers to any more."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def test_equal_plans_of_several_iterations_run_each_on_its_own_sequences() -> None:
    batches = [make_tokens([11], seed) for seed in range(4)]
    ahead, one_by_one = new_runner(), new_runner()
    for batch in batches[:3]:
        ahead.prepare(PLAN, batch)
    losses = [ahead.run(PLAN).loss]
    ahead.prepare(PLAN, batches[3])
    losses += [ahead.run(PLAN).loss for _ in batches[1:]]
    assert losses == [one_by_one.run(PLAN, batch).loss for batch in batches]
    assert len(set(losses)) == len(losses)
    assert torch.equal(ahead.state.masters, one_by_one.state.masters)
    ahead.close()
    one_by_one.close()


def test_a_closed_runner_says_so_and_may_be_closed_again() -> None:
    runner = new_runner()
    runner.prepare(PLAN, TOKENS)
    runner.run(PLAN)
    runner.close()
    runner.close()
    for call in (runner.run, runner.evaluate, runner.prepare):
        with pytest.raises(RunnerClosed, match="the runner is closed; build another one"):
            call(PLAN, TOKENS)


def test_inference_mode_around_a_first_evaluation_or_a_run_changes_nothing() -> None:
    loss, _, _ = reference_step(Decoder(CONFIG, seed=SEED, dtype=torch.float64), TOKENS)
    evaluated, trained = new_runner(), new_runner()
    with torch.inference_mode():
        assert evaluated.evaluate(PLAN, TOKENS) == pytest.approx(loss, abs=TOLERANCE)
        built = new_runner()
        built.state.load_optimizer_shards(built.state.optimizer_shards())
        assert built.run(PLAN, [tokens.clone() for tokens in TOKENS]).loss == pytest.approx(loss, abs=TOLERANCE)
    for runner in (evaluated, trained):
        assert runner.run(PLAN, TOKENS).loss == pytest.approx(loss, abs=TOLERANCE)
    second = [runner.run(PLAN, TOKENS).loss for runner in (evaluated, trained, built)]
    assert len(set(second)) == 1
    assert second[0] < loss
    for runner in (evaluated, trained, built):
        runner.close()


def test_the_norm_of_huge_gradients_is_infinite_and_no_fault() -> None:
    runner = new_runner()
    gradients = runner.state.gradients
    gradients.copy_(torch.randn(gradients.numel(), dtype=torch.float64, generator=torch.Generator().manual_seed(0)))
    assert runner._square() == pytest.approx(float(gradients @ gradients), rel=1e-12)
    gradients.fill_(1e200)
    assert runner._square() == float("inf")
    gradients[-1] = float("nan")
    assert runner._square() != runner._square()
    runner.close()


@pytest.mark.usefixtures("without_collector")
def test_a_compute_buffer_is_freed_with_its_last_reference() -> None:
    table, part = ParameterTable.of(CONFIG), ModelPart(CONFIG)
    parameters, gradients = (torch.zeros(table.num_elements, dtype=torch.float64) for _ in range(2))
    buffer = ComputeBuffer(part, part.buckets(table, 2), parameters, gradients)
    used: list[int] = []
    buffer.begin(used.append, used.append)
    buffer.expect_last()
    bounds = torch.tensor([0, 5], dtype=torch.int32)
    buffer.stage(torch.arange(5), bounds, 5).sum().backward()
    assert used == [0, 0, 1, 2, 2, 1, 0]
    buffer.end()
    gone = weakref.ref(buffer), weakref.ref(buffer.stage), weakref.ref(next(buffer.stage.parameters()))
    del buffer
    assert [reference() for reference in gone] == [None, None, None]


@pytest.mark.usefixtures("without_collector")
def test_a_runner_is_freed_with_its_last_reference() -> None:
    runner = new_runner()
    runner.run(PLAN, TOKENS)
    runner.evaluate(PLAN, TOKENS)
    runner.close()
    gone = weakref.ref(runner), weakref.ref(runner._propagation)
    del runner
    assert [reference() for reference in gone] == [None, None]


def test_what_comes_back_is_staged_where_what_went_out_was() -> None:
    state = ShardedState(CONFIG, seed=SEED, make_optimizer=make_optimizer)
    runner = IterationRunner(state, compute_dtype=torch.bfloat16)
    # Alone, a rank sends itself every parameter in bf16 and gets every gradient in fp32.
    runner.evaluate(PLAN, TOKENS)
    assert 0 <= runner._propagation._staging.nbytes - 2 * state.table.num_elements < 8
    runner.run(PLAN, TOKENS)
    assert 0 <= runner._propagation._staging.nbytes - 4 * state.table.num_elements < 8
    runner.close()


def grouped_and_single() -> Plan:
    """Two micro-batches of the same lengths, the first of single sequences, the second of one group."""
    single, group = [("rank-0", 3, 1), ("rank-0", 5, 1)], [("rank-0", 5, 1), ("rank-0", 3, 1)]
    plan = make_plan([[single, group]])
    replica = plan.replicas[0]
    held_together = replica.micro_batches[1].model_copy(
        update={"groups": [GroupCount(source="rank-0", lengths=[3, 5], count=1)]}
    )
    return reseal(
        plan,
        replicas=[replica.model_copy(update={"micro_batches": [replica.micro_batches[0], held_together]})],
    )


def test_a_groups_sequences_run_in_one_micro_batch() -> None:
    held = make_tokens([3, 5, 3, 5], 3)
    plan = grouped_and_single()
    exchange = SequenceExchange(
        sequence_routes(plan, 1), rank_roles(plan, 1)[0], {"rank-0": held}, {"rank-0": [[0, 3]]}
    )
    singles, group = exchange.micro_batches(exchange.reserve_tokens().run("testing"))
    assert torch.equal(singles.tokens, torch.cat([held[2], held[1]]))
    assert torch.equal(group.tokens, torch.cat([held[3], held[0]]))


@pytest.mark.parametrize(
    "tokens",
    [
        torch.zeros(11, dtype=torch.uint16),
        torch.zeros(11, dtype=torch.complex64),
        torch.zeros(11),
        torch.zeros(11, dtype=torch.bool),
        torch.zeros(1, 11, dtype=torch.int64),
        torch.zeros(0, dtype=torch.int64),
    ],
    ids=lambda tokens: f"{tokens.dtype}, {tokens.dim()} dimensions, {tokens.numel()} elements",
)
def test_what_is_no_flat_tensor_of_token_ids_is_refused(tokens: torch.Tensor) -> None:
    runner = new_runner()
    with pytest.raises(IterationFailed, match=f"{tokens.dtype} tensor of shape .* of torch.int64, torch.int32"):
        runner.run(PLAN, [tokens])
    runner.close()


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8])
def test_token_ids_may_have_any_integer_dtype_that_torch_computes_with(dtype: torch.dtype) -> None:
    runner = new_runner()
    loss, _, _ = reference_step(Decoder(CONFIG, seed=SEED, dtype=torch.float64), TOKENS)
    assert runner.evaluate(PLAN, [TOKENS[0].to(dtype)]) == pytest.approx(loss, abs=TOLERANCE)
    runner.close()
