"""Mistakes that an executor could make without failing, to be made on purpose; importable by ranks.

That positions begin anew in each sequence is none of them: rotary embeddings see distances alone, and attention stays
inside a sequence.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

import torch
from random_training import Training, train_one
from torch import Tensor
from training_reference import Course

from worker_agent.executor import model, pipeline, propagate, runner, tensor_parallel
from worker_agent.executor.compute_buffer import ComputeBuffer
from worker_agent.executor.faults import ExecutionFault
from worker_agent.executor.parameters import Parameter
from worker_agent.executor.parts import ModelPart, Slice

Patch = tuple[object, str, Any]


def _loss_over_the_micro_batchs_own_targets(losses: Tensor, _: int) -> Tensor:
    return losses.mean()


def _slices(change: Callable[[ModelPart, Slice], dict[str, Any]]) -> Patch:
    honest = ModelPart._slice

    def broken(self: ModelPart, entry: Parameter, attribute: str | None = None) -> Slice:
        made = honest(self, entry, attribute)
        return replace(made, **change(self, made))

    return ModelPart, "_slice", broken


def _norms_from_every_tensor_parallel_rank(_: ModelPart, __: Slice) -> dict[str, Any]:
    return {"returns_gradient": True}


def _shared_heads_from_one_rank(part: ModelPart, made: Slice) -> dict[str, Any]:
    shared = made.parameter.split == "kv_heads"
    return {"returns_gradient": made.returns_gradient and not (shared and part.tp_rank)}


def _tied_head_from_no_rank(_: ModelPart, made: Slice) -> dict[str, Any]:
    tied = made.attribute == "head" and made.parameter.name == "embedding"
    return {"returns_gradient": made.returns_gradient and not tied}


def _attends_across_sequences(query: Tensor, key: Tensor, value: Tensor, _: Tensor, __: int) -> Tensor:
    return model_attention(query, key, value, torch.tensor([0, len(query)], dtype=torch.int32), len(query))


model_attention = model.varlen_attention


def _knows_no_positions(heads: Tensor, _: tuple[Tensor, Tensor]) -> Tensor:
    return heads


def _last_tokens_predict_the_next_sequence(tokens: Tensor, *_: Any) -> Tensor:
    return tokens.roll(-1)


def _clips_by_its_own_norm(self: runner.IterationRunner, plan: Any, _: float) -> None:
    honest_step(self, plan, float(self.state.gradients.norm()))


honest_step = runner.IterationRunner._step


def _keeps_old_gradients(self: ComputeBuffer, *calls: Callable[[int], None]) -> None:
    kept = self.gradients.clone()
    honest_begin(self, *calls)
    self.gradients.copy_(torch.nan_to_num(kept).clamp(-1, 1))


honest_begin = ComputeBuffer.begin


def _overwrites_where_it_should_add(flat: Tensor, leg: Any, received: Tensor) -> None:
    at = 0
    for begin, end in leg.received.tolist():
        flat[begin:end] = received[at : at + end - begin]
        at += end - begin


def _every_rank_looks_every_token_up(tokens: Tensor, first: int, num_rows: int) -> tuple[Tensor, Tensor]:
    return (tokens - first).clamp(0, num_rows - 1), torch.ones_like(tokens, dtype=torch.bool)


def _input_gradients_are_not_summed(_: Any, gradient: Tensor) -> tuple[Tensor, None]:
    return gradient, None


MISTAKES: dict[str, Patch] = {
    "a micro-batch's loss is divided by its own targets": (
        pipeline,
        "scaled_loss",
        _loss_over_the_micro_batchs_own_targets,
    ),
    "every tensor-parallel rank returns the norms' gradients": _slices(_norms_from_every_tensor_parallel_rank),
    "shared key-value heads take one rank's gradient": _slices(_shared_heads_from_one_rank),
    "a tied head's gradient is left out": _slices(_tied_head_from_no_rank),
    "tokens attend across sequences": (model, "varlen_attention", _attends_across_sequences),
    "nothing is rotated": (model, "_rotate", _knows_no_positions),
    "last tokens predict the next sequence": (pipeline, "next_token_targets", _last_tokens_predict_the_next_sequence),
    "each rank clips by the norm of its own shard": (runner.IterationRunner, "_step", _clips_by_its_own_norm),
    "gradients of the last iteration stay": (ComputeBuffer, "begin", _keeps_old_gradients),
    "returned gradients replace one another": (propagate, "_add_pieces", _overwrites_where_it_should_add),
    "every rank looks every token up": (tensor_parallel, "_local_rows", _every_rank_looks_every_token_up),
    "gradients of shared inputs are not summed": (
        tensor_parallel._SplitInput,
        "backward",
        staticmethod(_input_gradients_are_not_summed),
    ),
}


@contextmanager
def made(mistake: str | None) -> Iterator[None]:
    if mistake is None:
        yield
        return
    with mock.patch.object(*MISTAKES[mistake]):
        yield


def train_with_mistakes(_: int, training: Training) -> dict[str | None, Course | str]:
    """Run a training honestly and with each mistake; report its course or the fault it ended in."""
    found: dict[str | None, Course | str] = {}
    for mistake in (None, *MISTAKES):
        with made(mistake):
            try:
                found[mistake] = train_one(training)
            except ExecutionFault as fault:
                found[mistake] = f"{type(fault).__name__}: {fault}"
    return found
