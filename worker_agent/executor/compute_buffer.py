"""The memory one rank computes in: a stage whose parameters and gradients are views of two flat buffers."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from worker_agent.executor.model import DecoderStage
from worker_agent.executor.parts import ModelPart, Slice


class Arena:
    """Flat buffers that grow when needed and are used again by later iterations."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._held: dict[str, Tensor] = {}

    def take(self, name: str, num_elements: int, dtype: torch.dtype) -> Tensor:
        """Return a buffer of a name, shape (num_elements,); its content is whatever was left there."""
        held = self._held.get(name)
        if held is None or held.dtype != dtype or held.numel() < num_elements:
            # The old buffer is let go first, so that both are never needed at once.
            self._held.pop(name, None)
            del held
            held = self._held[name] = torch.empty(num_elements, dtype=dtype, device=self._device)
        return held[:num_elements]


class ComputeBuffer:
    """A stage on flat memory, which knows when a bucket's parameters are used and when its gradients are done.

    Parameters
    ----------
    part
        What the rank computes.
    buckets
        The slices it holds, in the order they lie in memory.
    parameters
        Weights, shape (elements,), in the dtype of computation.
    gradients
        Their gradients, shape (elements,); may have more accuracy than the weights.

    Attributes
    ----------
    stage
        The module; its parameters are views of ``parameters``.
    """

    def __init__(
        self, part: ModelPart, buckets: Sequence[Sequence[Slice]], parameters: Tensor, gradients: Tensor
    ) -> None:
        self.parameters, self.gradients = parameters, gradients
        self._before_bucket: Callable[[int], None] | None = None
        self._after_bucket: Callable[[int], None] | None = None
        self._num_undone: list[int] = []
        self._sizes = [len(bucket) for bucket in buckets]
        with torch.device("meta"):
            self.stage = DecoderStage(part)
        at = 0
        for number, bucket in enumerate(buckets):
            for one in bucket:
                end = at + one.end - one.begin
                self._bind(number, one, parameters[at:end].view(one.shape), gradients[at:end].view(one.shape))
                at = end
        self._announce_use(buckets)

    def begin(self, before_bucket: Callable[[int], None], after_bucket: Callable[[int], None]) -> None:
        """Begin an iteration: gradients become zero, and the two are called with a bucket's number.

        Parameters
        ----------
        before_bucket
            Before each use of a bucket's parameters in a forward pass.
        after_bucket
            Once, when the backward pass announced by `expect_last` has completed the bucket's gradients.
        """
        self._before_bucket, self._after_bucket = before_bucket, after_bucket
        self._num_undone = []
        self.gradients.zero_()

    def expect_last(self) -> None:
        """Announce that the next backward pass is the last of the iteration."""
        self._num_undone = list(self._sizes)

    def _bind(self, number: int, one: Slice, weights: Tensor, gradient: Tensor) -> None:
        parameter = nn.Parameter(weights)
        adds_itself = weights.dtype == gradient.dtype
        if adds_itself:
            # Autograd adds into a gradient that is there already.
            parameter.grad = gradient

        def done(of: Tensor) -> None:
            if not adds_itself and of.grad is not None:
                gradient.add_(of.grad)
                of.grad = None
            self._count_down(number)

        parameter.register_post_accumulate_grad_hook(done)  # type: ignore[no-untyped-call]
        self.stage.replace_parameter(one.attribute, parameter)

    def _count_down(self, bucket: int) -> None:
        if not self._num_undone:
            return
        self._num_undone[bucket] -= 1
        if self._num_undone[bucket] == 0 and self._after_bucket is not None:
            self._after_bucket(bucket)

    def _announce_use(self, buckets: Sequence[Sequence[Slice]]) -> None:
        """Call ``before_bucket`` ahead of the stage, for the first, and ahead of each further bucket's first layer."""
        self._announce(self.stage, 0)
        for number, bucket in enumerate(buckets):
            first = min(one.parameter.layer for one in bucket if one.parameter.layer is not None)
            self._announce(self.stage.layers[str(first)], number)

    def _announce(self, module: nn.Module, number: int) -> None:
        def before(_: nn.Module, __: object) -> None:
            if self._before_bucket is not None:
                self._before_bucket(number)

        module.register_forward_pre_hook(before)
