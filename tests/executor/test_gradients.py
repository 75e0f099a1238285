import pytest
import torch
from torch import nn

from worker_agent.executor.gradients import FlatGradients


def test_micro_batches_accumulate_in_the_flat_buffer_even_after_the_optimizer_cleared_its_gradients() -> None:
    model = nn.Linear(3, 2).double()
    gradients = FlatGradients(model.parameters())
    inputs = torch.arange(3, dtype=torch.float64)
    for _ in range(2):
        gradients.zero()
        for _ in range(2):
            model(inputs).sum().backward()
        assert gradients.flat.tolist() == [0.0, 2.0, 4.0, 0.0, 2.0, 4.0, 2.0, 2.0]
        assert model.bias.grad.untyped_storage().data_ptr() == gradients.flat.untyped_storage().data_ptr()
        torch.optim.SGD(model.parameters(), lr=0.1).zero_grad(set_to_none=True)


def test_frozen_weights_have_no_place_in_the_buffer() -> None:
    model = nn.Linear(3, 2)
    model.bias.requires_grad = False
    assert FlatGradients(model.parameters()).flat.numel() == 6


def test_weights_that_one_buffer_cannot_hold_are_refused() -> None:
    with pytest.raises(ValueError, match=r"torch.float32 on cpu, torch.float64 on cpu"):
        FlatGradients([nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1, dtype=torch.float64))])
    with pytest.raises(ValueError, match="no trained parameter"):
        FlatGradients([])


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_one_bad_gradient_is_noticed(value: float) -> None:
    model = nn.Linear(3, 2)
    gradients = FlatGradients(model.parameters())
    assert gradients.are_finite()
    gradients.flat[4] = value
    assert not gradients.are_finite()
