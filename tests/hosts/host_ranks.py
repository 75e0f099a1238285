"""Ranks on hosts: one process each, in its host's namespace, with what torchrun tells it; every wait bounded."""

import os
import pickle
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from forked import FORKED
from host_network import FABRIC, Host
from namespaces import enter
from rank_group import RankEnd, end_of, run_check

_MASTER_PORT = 29500


class HostRanks:
    """One rank on each host, begun with the context and cut off at its end.

    Parameters
    ----------
    hosts
        Rank 0's host first.
    folder
        Where ranks write how they ended, and their output (``rank-N.log``).
    check, arguments
        What each rank runs: ``check(rank, *arguments)``.
    env
        What further is in the environment of each rank, by rank.
    """

    def __init__(
        self,
        hosts: Sequence[Host],
        folder: Path,
        check: Callable[..., Any],
        *arguments: Any,
        env: Callable[[int], Mapping[str, str]] = lambda _rank: {},
    ) -> None:
        self._folder = folder
        folder.mkdir(parents=True)
        call = pickle.dumps((check, *arguments))
        self._processes: list[BaseProcess] = []
        for rank, host in enumerate(hosts):
            described = _described(rank, hosts) | env(rank)
            self._processes.append(
                FORKED.Process(target=_rank_main, args=(rank, host.namespace, described, folder, call))
            )

    def __enter__(self) -> Self:
        for process in self._processes:
            process.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for process in self._processes:
            process.kill()
            process.join()

    def ends(self, limit_s: float) -> list[RankEnd]:
        """Wait for all ranks; return how each ended."""
        ends_at = time.monotonic() + limit_s
        for process in self._processes:
            process.join(max(0.0, ends_at - time.monotonic()))
        overdue = [rank for rank, process in enumerate(self._processes) if process.is_alive()]
        assert not overdue, f"ranks {overdue} hang; they said: {self.output(overdue)}"
        return [end_of(self._folder, rank, process.exitcode) for rank, process in enumerate(self._processes)]

    def output(self, ranks: Sequence[int]) -> str:
        """Return the end of what ranks wrote to standard output and standard error."""
        texts = [(self._folder / f"rank-{rank}.log").read_text(errors="replace") for rank in ranks]
        return "\n".join(f"rank {rank}: {text[-2000:]}" for rank, text in zip(ranks, texts, strict=True))


def _described(rank: int, hosts: Sequence[Host]) -> dict[str, str]:
    """Return the environment that torchrun gives a rank which is alone on its host."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(len(hosts)),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": hosts[0].address(FABRIC),
        "MASTER_PORT": str(_MASTER_PORT),
        "GLOO_SOCKET_IFNAME": FABRIC,
    }


def _rank_main(rank: int, namespace: str, env: dict[str, str], folder: Path, call: bytes) -> None:
    with (folder / f"rank-{rank}.log").open("wb") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    enter(namespace)
    os.environ.update(env)
    torch.set_num_threads(1)
    run_check(rank, folder, call)
