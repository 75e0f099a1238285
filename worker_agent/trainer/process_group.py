"""The process group of a run: the one that is there, the one torchrun describes, or one process alone."""

import os
from datetime import timedelta

import torch
import torch.distributed as dist


def join_process_group(timeout_s: float) -> bool:
    """Join the default process group, unless this process is in one already; NCCL with GPUs, gloo without.

    Parameters
    ----------
    timeout_s
        Most time that a rank waits for another in any collective.

    Returns
    -------
    bool
        Whether it was joined here, so that whoever asked leaves it again.
    """
    has_gpu = torch.cuda.is_available()
    if has_gpu and "LOCAL_RANK" in os.environ:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    if dist.is_initialized():
        return False
    backend = "nccl" if has_gpu else "gloo"
    timeout = timedelta(seconds=timeout_s)
    if "RANK" in os.environ:
        dist.init_process_group(backend, timeout=timeout)
    else:
        store = dist.HashStore()  # type: ignore[attr-defined]
        dist.init_process_group(backend, store=store, rank=0, world_size=1, timeout=timeout)
    return True
