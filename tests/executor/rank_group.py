"""Starts real ranks: spawned processes, gloo, one thread each, every wait bounded."""

import os
import pickle
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from forked import FORKED


@dataclass(frozen=True)
class RankEnd:
    """How a rank ended: what its check returned, or the text of what it raised, or neither if it was cut off."""

    returned: Any = None
    raised: str | None = None
    exit_code: int | None = None


def run_ranks(
    check: Callable[..., Any],
    world_size: int,
    folder: Path,
    *arguments: Any,
    limit_s: float = 90.0,
    stalled: frozenset[int] = frozenset(),
    backend: str = "gloo",
) -> list[RankEnd]:
    """Run ``check(rank, *arguments)`` on every rank and collect how each ended; stalled ranks are not waited for."""
    # Pickled here, tensors go as values; the forkserver would hand over a file of shared memory for each.
    call = pickle.dumps((check, *arguments))
    processes = [
        FORKED.Process(target=_rank_main, args=(rank, world_size, folder, backend, call)) for rank in range(world_size)
    ]
    for process in processes:
        process.start()
    try:
        deadline = time.monotonic() + limit_s
        for rank, process in enumerate(processes):
            if rank not in stalled:
                process.join(max(0.0, deadline - time.monotonic()))
        overdue = [rank for rank, process in enumerate(processes) if process.is_alive() and rank not in stalled]
        assert not overdue, f"ranks {overdue} hang"
    finally:
        for process in processes:
            process.kill()
            process.join()
    return [end_of(folder, rank, process.exitcode) for rank, process in enumerate(processes)]


def end_of(folder: Path, rank: int, exit_code: int | None) -> RankEnd:
    """Return how a rank ended."""
    path = folder / f"rank-{rank}.pt"
    if not path.exists():
        return RankEnd(exit_code=exit_code)
    returned, raised = torch.load(path, weights_only=False)
    return RankEnd(returned, raised, exit_code)


def _rank_main(rank: int, world_size: int, folder: Path, backend: str, call: bytes) -> None:
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    if backend == "nccl":
        torch.cuda.set_device(rank)
    dist.init_process_group(
        backend,
        init_method=f"file://{folder / 'store'}",
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=60),
    )
    run_check(rank, folder, call)
    dist.destroy_process_group()


def run_check(rank: int, folder: Path, call: bytes) -> None:
    """Run a rank's pickled check; write down, whole or not at all, what it returned, and the text of what it raised."""
    end: tuple[Any, str | None]
    try:
        check, *arguments = pickle.loads(call)  # noqa: S301 - the test's own
        end = (check(rank, *arguments), None)
    except Exception:  # noqa: BLE001 - the test reads what it was
        end = (None, traceback.format_exc())
    torch.save(end, folder / f"rank-{rank}.part")
    (folder / f"rank-{rank}.part").rename(folder / f"rank-{rank}.pt")
