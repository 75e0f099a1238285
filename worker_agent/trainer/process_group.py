"""The process group of a run: the one that is there, the one torchrun describes, or one process alone."""

import os
from datetime import timedelta
from itertools import count

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from worker_agent.executor.faults import RankLost

_joins = count()
"""Groups joined by this process so far; every rank of a job counts the same."""

_stores: dict[tuple[str | None, ...], Store] = {}
"""The store of each rendezvous, kept while the process lives: a rank that is early for the next group must not reach
one that another rank is about to close."""

_RENDEZVOUS = ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT")
"""Variables that torchrun describes a group by."""


def join_process_group(timeout_s: float) -> bool:
    """Join the default process group, unless this process is in one already; NCCL with GPUs, gloo without.

    A process may leave a group and join another, as one trainer after the other does; all ranks do so alike.

    Parameters
    ----------
    timeout_s
        Most time that a rank waits for another in any collective.

    Returns
    -------
    bool
        Whether it was joined here, so that whoever asked leaves it again.

    Raises
    ------
    worker_agent.executor.faults.RankLost
        If not all ranks met in time.
    """
    has_gpu = torch.cuda.is_available()
    if has_gpu and "LOCAL_RANK" in os.environ:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    if dist.is_initialized():
        return False
    timeout = timedelta(seconds=timeout_s)
    backend = "nccl" if has_gpu else "gloo"
    try:
        store, rank, world_size = _met(timeout)
        dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, timeout=timeout)
    except dist.DistError as unmet:
        raise RankLost(_unmet(backend, timeout_s, unmet)) from unmet
    return True


def _unmet(backend: str, timeout_s: float, fault: Exception) -> str:
    """Say where ranks did not meet, and what to look at."""
    rank, world_size, host, port = (os.environ.get(name) for name in ("RANK", "WORLD_SIZE", *_RENDEZVOUS[:2]))
    return (
        f"rank {rank} did not meet all {world_size} ranks at {host}:{port} within {timeout_s:g} s "
        f"(collective_timeout_s): {fault}; see whether every rank was started, whether its host reaches that address, "
        f"and whether {backend.upper()}_SOCKET_IFNAME names the interface by which hosts reach one another"
    )


def _met(timeout: timedelta) -> tuple[Store, int, int]:
    """Return where the ranks of a new group meet, this process's rank and the number of ranks."""
    if "RANK" not in os.environ:
        return dist.HashStore(), 0, 1  # type: ignore[attr-defined]
    described = tuple(os.environ.get(name) for name in _RENDEZVOUS)
    if described not in _stores:
        _stores[described], _, _ = next(iter(rendezvous("env://", timeout=timeout)))
    store = _stores[described]
    store.set_timeout(timeout)
    # The store keeps the addresses of an earlier group, at which nobody listens any more: each has names of its own.
    own = PrefixStore(f"trainer-{next(_joins)}", store)
    return own, int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
