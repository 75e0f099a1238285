"""Train a small decoder on random sequences of uneven length, planned by a running service.

Start the service with `hydraulis serve`, then: torchrun --standalone --nproc-per-node 2 docs/examples/train.py
"""

import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

from planner_client import HydraulisError, PlannerClient
from planner_client.contract import Device, LayoutCost, ModelShape, Plan, PlanRequest, Profile, parse_strategy
from worker_agent.executor.agree import share_plan
from worker_agent.executor.model import Decoder, DecoderConfig
from worker_agent.executor.runner import IterationRunner

PLANNER_URL = os.environ.get("PLANNER_URL", "http://127.0.0.1:8000")
PROFILE = Profile(
    name="train-example",
    source="made up for this example; `hydraulis profile` measures a real one",
    model=ModelShape(name="tiny decoder", num_layers=2, hidden_size=64, vocab_size=256),
    device=Device(name="CPU", memory_bytes=2**30),
    layouts=[LayoutCost(tp=1, pp=1, a_ms_per_token2=2e-5, b_ms_per_token=0.02, c_ms=3.0, max_tokens=4096)],
)


def main() -> None:
    """Train for three iterations."""
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    model = Decoder(DecoderConfig(vocab_size=256, hidden_size=64, num_layers=2, num_heads=2), seed=0)
    runner = IterationRunner(model, torch.optim.AdamW(model.parameters(), lr=1e-3))
    drawn = torch.Generator().manual_seed(rank)
    for iteration in range(3):
        # What this rank's data loader holds: source `rank-<r>`, some long and many short sequences.
        lengths = [int(n) for n in torch.randint(16, 400, (6,), generator=drawn)] + [1500 * (rank == 0) + 10]
        sequences = [torch.randint(0, 256, (n,), generator=drawn) for n in lengths]
        all_lengths: list[list[int]] = [[] for _ in range(num_ranks)]
        dist.all_gather_object(all_lengths, lengths)

        # One rank asks the planner; all get the same plan, or the same error.
        answer = ask(all_lengths, iteration) if rank == 0 else None
        plan = share_plan(answer)
        result = runner.run(plan, sequences)
        if rank == 0:
            sys.stdout.write(f"iteration {iteration}: loss {result.loss:.4f}, gap {plan.gap:.2%}\n")
    dist.barrier()  # no rank leaves while another still talks to it
    dist.destroy_process_group()


def ask(all_lengths: list[list[int]], iteration: int) -> Plan | HydraulisError:
    """Ask the planner for a plan of one global batch."""
    request = PlanRequest(
        profile=PROFILE,
        num_gpus=len(all_lengths),
        strategies=[parse_strategy(f"(1,1)x{len(all_lengths)}")],
        iteration=iteration,
        lengths={f"rank-{rank}": lengths for rank, lengths in enumerate(all_lengths)},
    )
    try:
        with PlannerClient(PLANNER_URL) as planner:
            return planner.plan(request, timeout_s=10)
    except HydraulisError as failure:  # shared with all ranks, which raise it
        return failure


if __name__ == "__main__":
    main()
