"""What runs on GPU nodes: the trainer, the executor of plans and the profiler."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from worker_agent.executor.shape import DecoderConfig
    from worker_agent.trainer.trainer import Trainer

__all__ = ["DecoderConfig", "Trainer"]

_MODULES = {"DecoderConfig": "executor.shape", "Trainer": "trainer.trainer"}


def __getattr__(name: str) -> Any:
    """Import what is asked for, and no more: the trainer brings torch, which other commands need not have."""
    from importlib import import_module  # noqa: PLC0415 - only where a name is asked for

    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
