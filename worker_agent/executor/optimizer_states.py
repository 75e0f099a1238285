"""Which states an optimizer keeps of a parameter, before and after its first step."""

from collections import OrderedDict, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

STEP = "step"
"""Under this name optimizers count the steps of a parameter."""

_PROBE_ELEMENTS = 2


@dataclass(frozen=True)
class StateForm:
    """What a state looks like.

    Attributes
    ----------
    dtype, device
        Of its numbers.
    is_elementwise
        Whether it has one number for each element; otherwise it is one number.
    number
        The type of a number that is no tensor; None for a tensor.
    """

    dtype: torch.dtype
    device: torch.device
    is_elementwise: bool
    number: type[int] | type[float] | None = None

    def state_of(self, values: Tensor) -> Tensor | float:
        """Return the state that has these values, one for each element, shape (elements,); a copy."""
        if self.number is not None:
            return self.number(values[0].item())
        return (values if self.is_elementwise else values[0]).to(self.device, self.dtype, copy=True)


def forms_of(states: Mapping[str, Any], parameter: Tensor) -> dict[str, StateForm]:
    """Return the form of each of a flat parameter's states that holds numbers, by name.

    Raises
    ------
    ValueError
        If one is neither a number nor one number for each element.
    """
    forms: dict[str, StateForm] = {}
    for name, value in states.items():
        if isinstance(value, Tensor):
            if value.dim() and value.shape != parameter.shape:
                raise ValueError(
                    f"the optimizer keeps state {name!r} of shape {tuple(value.shape)} for {parameter.numel()} "
                    "elements; take one that treats every element by itself"
                )
            forms[name] = StateForm(value.dtype, value.device, value.dim() > 0)
        elif isinstance(value, int | float):
            number = float if isinstance(value, float) else int
            dtype = torch.float64 if number is float else torch.int64
            forms[name] = StateForm(dtype, parameter.device, is_elementwise=False, number=number)
    return forms


def foreseen_forms(optimizer: torch.optim.Optimizer, group: Mapping[str, Any], like: Tensor) -> dict[str, StateForm]:
    """Return the forms of the states that an optimizer will keep of a parameter which it has not stepped yet.

    They show in a step on two elements of no meaning by a stand-in that has the optimizer's settings and nothing of
    its states: how the optimizer begins, which for some depends on the first gradient or rate, is left to its own first
    step.

    Parameters
    ----------
    optimizer
        The optimizer.
    group
        The settings of the parameter.
    like
        The parameter.
    """
    probe = nn.Parameter(torch.zeros(_PROBE_ELEMENTS, dtype=like.dtype, device=like.device))
    probe.grad = torch.zeros_like(probe)
    kind = type(optimizer)
    stand_in = kind.__new__(kind)
    # Hooks, and the step that a scheduler has put in place of the class's own, are not for the stand-in.
    own = {name: value for name, value in vars(optimizer).items() if name != "step"}
    own |= {name: OrderedDict() for name in own if name.endswith("_hooks")}
    vars(stand_in).update(own | {"state": defaultdict(dict), "param_groups": [{**group, "params": [probe]}]})
    kind.step(stand_in)
    return forms_of(stand_in.state[probe], probe)
