"""What the way by agents costs: from the ranks' hand-ins to the plan in every rank's hands, less the planning itself.

Ranks are threads that hand in at once, one iteration after another, to an agent over its Unix socket; beside it the
same reports straight to the service by one client, so that what the agent adds can be told from what the service takes.
The bar is on what it adds for as many ranks as small machines have cores: more threads of one process wait for one
another, as ranks do not. The truth of what is timed is checked: every rank has the planner's
plan, and every sequence of every rank is in exactly one share.
"""

import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from served_planner import servers

from planner_client.client import PlannerClient
from planner_client.contract import JobSpec, Plan, PlanOptions, SourceBatch
from worker_agent.daemon.client import AgentClient
from worker_agent.daemon.wire import PlanOfRank, RankBatch

sys.path.append(str(Path(__file__).parent.parent / "agent"))
from served_agent import agents

MANY_RANKS = 8
FEW_RANKS = 2
NUM_ITERATIONS = 60
NUM_WARM = 10
SEQUENCES_OF_RANK = 25
BAR_MS = 10.0

Lengths = dict[int, list[int]]


def spec(job: str) -> JobSpec:
    return JobSpec(
        name=job,
        profile="llama-7b-a100-40g",
        num_gpus=8,
        strategies=[[{"tp": 4, "pp": 1, "num_replicas": 2}]],
        sources=["n0"],
        options=PlanOptions(deadline_ms=1000, target_gap=0.05),
    )


def batches(num_ranks: int) -> list[Lengths]:
    drawn = np.random.default_rng(1)
    return [
        {rank: drawn.integers(16, 1000, SEQUENCES_OF_RANK).tolist() for rank in range(num_ranks)}
        for _ in range(NUM_WARM + NUM_ITERATIONS)
    ]


def overheads_ms(num_ranks: int, plan: Callable[[int, Lengths], Plan]) -> list[float]:
    taken = []
    for iteration, held in enumerate(batches(num_ranks)):
        began = time.perf_counter()
        found = plan(iteration, held)
        taken.append(1000 * (time.perf_counter() - began) - found.planning_ms)
    return taken[NUM_WARM:]


def by_agent(
    job: str, agents_of_ranks: list[AgentClient], threads: ThreadPoolExecutor
) -> Callable[[int, Lengths], Plan]:
    def one(rank: int, iteration: int, held: Lengths) -> PlanOfRank:
        own = RankBatch(ranks=list(held), lengths=held[rank])
        return agents_of_ranks[rank].plan(job, iteration, rank, own, timeout_s=30.0)

    def plan(iteration: int, held: Lengths) -> Plan:
        asked = [threads.submit(one, rank, iteration, held) for rank in held]
        found = [asking.result() for asking in asked]
        assert len({told.plan.digest for told in found}) == 1
        for told in found:
            indices = sorted(index for share in told.part.shares for index in share.indices)
            assert indices == list(range(SEQUENCES_OF_RANK))
        return found[0].plan

    return plan


def straight(job: str, client: PlannerClient) -> Callable[[int, Lengths], Plan]:
    def plan(iteration: int, held: Lengths) -> Plan:
        lengths = [length for own in held.values() for length in own]
        client.report(job, iteration, "n0", SourceBatch(lengths=lengths))
        found = client.iteration_plan(job, iteration, wait_s=30.0)
        assert isinstance(found, Plan)
        return found

    return plan


def told(name: str, taken_ms: list[float]) -> str:
    return (
        f"{name}: median {statistics.median(taken_ms):.1f} ms, 90 % {np.percentile(taken_ms, 90):.1f} ms, "
        f"least {min(taken_ms):.1f} ms"
    )


def added_ms(num_ranks: int, url: str, address: str) -> float:
    """Measure both ways and say so; return what the agent adds (ms)."""
    clients = [AgentClient(address) for _ in range(num_ranks)]
    ways = [f"{way}-{num_ranks}" for way in ("straight", "by-agent")]
    with PlannerClient(url) as client, ThreadPoolExecutor(num_ranks) as threads:
        for job in ways:
            clients[0].register(spec(job))
        straight_ms = overheads_ms(num_ranks, straight(ways[0], client))
        by_agent_ms = overheads_ms(num_ranks, by_agent(ways[1], clients, threads))
    for agent in clients:
        agent.close()
    sys.stdout.write(
        f"\nless planning, {num_ranks} ranks of {SEQUENCES_OF_RANK} sequences\n"
        f"  {told('straight to the service, one client', straight_ms)}\n"
        f"  {told('by the agent, to every rank', by_agent_ms)}\n"
    )
    return statistics.median(by_agent_ms) - statistics.median(straight_ms)


@pytest.mark.bench
@pytest.mark.long
def test_the_way_by_an_agent_adds_little(tmp_path: Path) -> None:
    with servers(tmp_path) as serve, agents(tmp_path) as start:
        url = serve("--workers", "1").url
        address = start(url, "n0").address
        added_ms(MANY_RANKS, url, address)
        taken_ms = added_ms(FEW_RANKS, url, address)
    assert taken_ms <= BAR_MS, f"the agent adds {taken_ms:.1f} ms, over the bar of {BAR_MS:g} ms"
