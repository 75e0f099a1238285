"""How the ranks of a run meet, and what they say where they do not."""

import socket

import pytest
import torch.distributed as dist

from worker_agent.executor.faults import RankLost
from worker_agent.trainer.process_group import join_process_group


def test_a_rank_that_meets_nobody_says_where_it_waited_and_what_to_look_at(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
    described = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    for name, value in described.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(RankLost, match=rf"rank 1 .*2 ranks at 127\.0\.0\.1:{port} within 1 s.*GLOO_SOCKET_IFNAME"):
        join_process_group(1.0)
    assert not dist.is_initialized()
