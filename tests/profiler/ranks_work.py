"""What ranks run in the tests of launching them; a module of its own, so that fresh processes find it."""

import os
import signal
import time
from typing import Any

import torch
import torch.distributed as dist

from worker_agent.local_ranks import Emit


def sum_ranks(rank: int, num_ranks: int, argument: Any, emit: Emit) -> tuple[int, int, int, int]:
    emit(("begun", rank))
    total = torch.tensor([rank + argument])
    dist.all_reduce(total)
    return rank, num_ranks, int(total), torch.get_num_threads()


def fail_on_last_rank(rank: int, num_ranks: int, _argument: Any, _emit: Emit) -> None:
    if rank == num_ranks - 1:
        raise LookupError("the last rank found nothing")
    dist.barrier()


def die_on_last_rank(rank: int, num_ranks: int, _argument: Any, _emit: Emit) -> None:
    if rank == num_ranks - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


def wait_for_one_that_dies(rank: int, num_ranks: int, _argument: Any, _emit: Emit) -> None:
    dist.barrier()
    if rank == num_ranks - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()


def sleep_long(_rank: int, _num_ranks: int, _argument: Any, emit: Emit) -> None:
    emit(os.getpid())
    time.sleep(60)


def leave_without_a_result(rank: int, _num_ranks: int, _argument: Any, _emit: Emit) -> Any:
    if rank == 1:
        return lambda: 0  # which cannot be pickled
    time.sleep(60)
    return 0
