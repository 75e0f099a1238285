"""What a Chrome trace of an iteration says about parameters and gradients that move while ranks compute.

Importable by ranks.
"""

import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch.profiler import ProfilerActivity, profile

from planner_client.contract import Plan
from worker_agent.executor.model import DecoderConfig
from worker_agent.executor.runner import IterationRunner
from worker_agent.executor.shards import ShardedState

CONFIG = DecoderConfig(vocab_size=1024, hidden_size=512, num_layers=8, num_heads=8)
NUM_WARM_UPS = 2
MOVING = "gloo:all_to_all"
"""What the trace calls a round of propagation while a thread of gloo's carries it out."""


@dataclass(frozen=True)
class Span:
    """Something that a trace names, with its begin and end (us)."""

    name: str
    begin: float
    end: float


@dataclass(frozen=True)
class Overlap:
    """One iteration on one rank (us).

    ``assembling`` and ``returning`` are the time in which rounds were carried out, waiting for the other rank
    included, and how much of it passed while this rank computed; packing, posting and waiting for parameters are not
    computing. ``exposed`` is what moving adds to the iteration: just these, and what passes from the last backward
    pass until all gradients have arrived and are summed. ``whole`` runs from the first packing to the optimizer's end.
    """

    assembling: float
    assembling_while_computing: float
    returning: float
    returning_while_computing: float
    exposed: float
    whole: float


def trace(rank: int, plans: Sequence[Plan], lengths: Sequence[int]) -> list[list[Span]]:
    """Run plans on this rank; return what the trace of each iteration names, those to warm up left out."""
    state = ShardedState(CONFIG, make_optimizer=lambda groups: torch.optim.AdamW(groups, lr=1e-3))
    runner = IterationRunner(state, layers_per_bucket=1)
    generator = torch.Generator().manual_seed(rank)
    tokens = [torch.randint(CONFIG.vocab_size, (length,), generator=generator) for length in lengths]
    try:
        # Sequences travel before the first trace, so that rounds of propagation are all that traces show to move:
        # preparations end one after the other, and the first iteration to run waits for the last of them.
        for plan in plans:
            runner.prepare(plan, tokens)
        last_first = list(reversed(plans))
        for plan in last_first[:NUM_WARM_UPS]:
            runner.run(plan)
        return [_traced(runner, plan) for plan in last_first[NUM_WARM_UPS:]]
    finally:
        runner.close()


def _traced(runner: IterationRunner, plan: Plan) -> list[Span]:
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        runner.run(plan)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    return sorted(
        (Span(one["name"], one["ts"], one["ts"] + one["dur"]) for one in events if one.get("cat") == "user_annotation"),
        key=lambda span: span.begin,
    )


def overlap(spans: Sequence[Span]) -> Overlap:
    """Compute from a trace how much moved while this rank computed.

    Raises
    ------
    ValueError
        If the trace does not show as many rounds as were posted.
    """
    posted, waits, returned, summed, rounds = (
        [one for one in spans if one.name.startswith(beginning)]
        for beginning in ("post ", "assemble ", "return ", "sum ", MOVING)
    )
    passes = [one for one in spans if one.name.startswith(("forward ", "backward "))]
    if len(rounds) != len(posted) + len(returned):
        raise ValueError(f"the trace shows {len(rounds)} rounds but {len(posted)} + {len(returned)} were posted")
    begin, end = posted[0].begin, next(one.end for one in spans if one.name.startswith("Optimizer"))

    def during(named: Sequence[Span]) -> npt.NDArray[np.bool_]:
        """Mark the microseconds of the iteration in which any of the spans was under way."""
        mask = np.zeros(int(end - begin) + 1, dtype=np.bool_)
        for one in named:
            mask[max(0, int(one.begin - begin)) : max(0, int(one.end - begin))] = True
        return mask

    handling = during([*posted, *waits, *returned])
    computing = during(passes) & ~handling
    handling[int(passes[-1].end - begin) : int(summed[-1].end - begin)] = True
    inward = during([one for one in rounds if one.begin >= returned[0].begin])
    outward = during([one for one in rounds if one.begin < returned[0].begin])
    return Overlap(
        assembling=float(outward.sum()),
        assembling_while_computing=float((outward & computing).sum()),
        returning=float(inward.sum()),
        returning_while_computing=float((inward & computing).sum()),
        exposed=float(handling.sum()),
        whole=end - begin,
    )
