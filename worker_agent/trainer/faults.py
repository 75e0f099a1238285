"""What ends a run, by what its operator does about it. Every rank of a run raises the same fault."""

from pathlib import Path

from worker_agent.executor.faults import ExecutionFault


class TrainingStopped(ExecutionFault):
    """An iteration could not be run; the message says from where to go on. Its cause is the executor's fault.

    Attributes
    ----------
    iteration
        The iteration, counted from 0.
    checkpoint
        The newest whole checkpoint, if there is one.
    """

    def __init__(self, message: str, iteration: int, checkpoint: Path | None) -> None:
        super().__init__(message)
        self.iteration = iteration
        self.checkpoint = checkpoint


class NoPlan(ExecutionFault):
    """Whoever makes the plans gave none."""


class OverLong(NoPlan):
    """A sequence is longer than any plan of the run may hold; `worker_agent.trainer.planning.taken` says which."""


class DataRefused(ExecutionFault, ValueError):  # noqa: N818 - named after what happened, like its siblings
    """A sequence that cannot be trained on, or data that ends where more is needed."""


class CheckpointRefused(ExecutionFault):
    """A checkpoint that cannot be read or written: missing, torn, of another model, or in a place not writable."""


class CheckpointCorrupt(CheckpointRefused):
    """A checkpoint whose files have other bytes than were written."""


class HuggingFaceRefused(ExecutionFault, ValueError):  # noqa: N818 - named after what happened, like its siblings
    """A Hugging Face model that this decoder does not represent, or files that are not whole."""
