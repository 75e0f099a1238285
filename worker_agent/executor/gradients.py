"""Gradients in one flat buffer, so that one all-reduce sums them all."""

from collections.abc import Iterable

import torch
from torch import nn

from worker_agent.executor.collectives import Group, sum_in_place


class FlatGradients:
    """The gradients of a model as one buffer; every ``parameter.grad`` is a view of it.

    Autograd adds into gradients that are already there, so micro-batches accumulate in the buffer. The optimizer must
    keep them: its ``zero_grad(set_to_none=True)`` takes the views away, and `zero` puts them back.

    Attributes
    ----------
    flat
        All gradients, shape (number of trained weights,).

    Raises
    ------
    ValueError
        If nothing is trained, or the parameters differ in dtype or device.
    """

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self._parameters = [parameter for parameter in parameters if parameter.requires_grad]
        kinds = {(parameter.dtype, parameter.device) for parameter in self._parameters}
        if len(kinds) != 1:
            found = ", ".join(sorted(f"{dtype} on {device}" for dtype, device in kinds)) or "no trained parameter"
            raise ValueError(f"one flat gradient buffer needs one dtype on one device but the model has {found}")
        dtype, device = kinds.pop()
        sizes = [parameter.numel() for parameter in self._parameters]
        self.flat = torch.zeros(sum(sizes), dtype=dtype, device=device)
        self._views = [
            part.view(parameter.shape)
            for part, parameter in zip(torch.split(self.flat, sizes), self._parameters, strict=True)
        ]

    def check(self, parameters: Iterable[nn.Parameter]) -> None:
        """Refuse to go on if the trained weights are no longer those the buffer was made for.

        Raises
        ------
        ValueError
            If weights were frozen, unfrozen, replaced, or moved to another dtype or device since.
        """
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        same = len(trained) == len(self._parameters) and all(
            now is before and now.dtype == self.flat.dtype and now.device == self.flat.device
            for now, before in zip(trained, self._parameters, strict=True)
        )
        if not same:
            raise ValueError(
                "the model's trained weights were frozen, unfrozen, replaced or moved since the runner was built; "
                "build a new IterationRunner after such a change"
            )

    def checksum(self) -> int:
        """Sum the weights' bits as integers: equal for equal weights, whatever the order of summing."""
        integers = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[self.flat.element_size()]
        return sum(
            (index + 1) * int(parameter.detach().contiguous().view(integers).sum(dtype=torch.int64))
            for index, parameter in enumerate(self._parameters)
        )

    def zero(self) -> None:
        """Set every gradient to zero and make every ``parameter.grad`` a view of the buffer again."""
        self.flat.zero_()
        for parameter, view in zip(self._parameters, self._views, strict=True):
            parameter.grad = view

    def sum_over(self, group: Group) -> None:
        """Sum the gradients over all ranks."""
        sum_in_place(self.flat, group, "summing gradients")

    def are_finite(self) -> bool:
        """Tell whether no gradient is NaN or infinite."""
        return bool(torch.isfinite(self.flat).all())
