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


class _Uses:
    """Who is told of the use of buckets: all that the stage's hooks hold, so that no cycle keeps its memory."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self._sizes = tuple(sizes)
        self._num_undone: list[int] = []
        self._before: Callable[[int], None] | None = None
        self._after: Callable[[int], None] | None = None

    def begin(self, before: Callable[[int], None], after: Callable[[int], None]) -> None:
        self._before, self._after, self._num_undone = before, after, []

    def end(self) -> None:
        self._before, self._after, self._num_undone = None, None, []

    def expect_last(self) -> None:
        self._num_undone = list(self._sizes)

    def begins(self, bucket: int) -> None:
        if self._before is not None:
            self._before(bucket)

    def done(self, bucket: int) -> None:
        if not self._num_undone:
            return
        self._num_undone[bucket] -= 1
        if self._num_undone[bucket] == 0 and self._after is not None:
            self._after(bucket)


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
        self._uses = _Uses([len(bucket) for bucket in buckets])
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
        self._uses.begin(before_bucket, after_bucket)
        self.gradients.zero_()

    def end(self) -> None:
        """End the iteration: nobody is told anything more, nor held on to."""
        self._uses.end()

    def expect_last(self) -> None:
        """Announce that the next backward pass is the last of the iteration."""
        self._uses.expect_last()

    def _bind(self, number: int, one: Slice, weights: Tensor, gradient: Tensor) -> None:
        parameter = nn.Parameter(weights)
        uses, adds_itself = self._uses, weights.dtype == gradient.dtype
        if adds_itself:
            # Autograd adds into a gradient that is there already.
            parameter.grad = gradient

        def done(of: Tensor) -> None:
            if not adds_itself and of.grad is not None:
                gradient.add_(of.grad)
                of.grad = None
            uses.done(number)

        parameter.register_post_accumulate_grad_hook(done)  # type: ignore[no-untyped-call]
        self.stage.replace_parameter(one.attribute, parameter)

    def _announce_use(self, buckets: Sequence[Sequence[Slice]]) -> None:
        """Call ``before_bucket`` ahead of the stage, for the first, and ahead of each further bucket's first layer."""
        self._announce(self.stage, 0)
        for number, bucket in enumerate(buckets):
            first = min(one.parameter.layer for one in bucket if one.parameter.layer is not None)
            self._announce(self.stage.layers[str(first)], number)

    def _announce(self, module: nn.Module, number: int) -> None:
        uses = self._uses

        def before(_: nn.Module, __: object) -> None:
            uses.begins(number)

        module.register_forward_pre_hook(before)
