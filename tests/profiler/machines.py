"""Made-up machines, on which rounds take no time."""

import random
from collections.abc import Callable

from worker_agent.executor.shape import DecoderConfig
from worker_agent.profiler.readings import Measured, read_round
from worker_agent.profiler.records import Round, RoundRecord
from worker_agent.profiler.round_plan import replica_packings
from worker_agent.profiler.rounds import Progress
from worker_agent.profiler.settings import Layout, ProfilingSettings, parse_layouts

MODEL = DecoderConfig(vocab_size=16, hidden_size=16, num_layers=4, num_heads=4)

Noise = Callable[[], float]


def make_settings(layouts: str | tuple[Layout, ...] = "1x1,2x1,1x2", **changes: object) -> ProfilingSettings:
    given: dict[str, object] = {
        "name": "tiny",
        "config": MODEL,
        "max_tokens": 512,
        "max_length": 256,
        "layouts": parse_layouts(layouts) if isinstance(layouts, str) else layouts,
        "num_packings": 10,
        "num_repeats": 2,
        "max_repeats": 5,
        "timeout_s": 60.0,
    }
    return ProfilingSettings(**(given | changes))  # type: ignore[arg-type]


def cost_ms(lengths: list[int], tp: int, pp: int) -> float:
    return 1.0 + sum(1e-4 * length * length + 0.02 * length for length in lengths) / (tp * pp)


def run_round(progress: Progress, measured: Round, noise: Noise, most_tokens: int = 10**9) -> RoundRecord:
    """Run a round on a machine whose times are the cost model's times noise, and which holds so many tokens."""
    settings, layout = progress.settings, progress.settings.layouts[measured.layout]
    if any(sum(progress.packings[packing]) > most_tokens for packing in measured.packings):
        return RoundRecord(round=measured, readings=(), lacked_memory=True)
    ranks = []
    for rank in range(settings.num_ranks):
        replica = rank // layout.num_ranks
        if replica >= settings.num_replicas(layout):
            ranks.append(Measured(10.0, 0.0, 0.01, 5.0, ()))
            continue
        packings = [progress.packings[one] for one in replica_packings(settings, measured, replica)]
        times = tuple(cost_ms(lengths, layout.tp, layout.pp) * noise() for lengths in packings)
        peak = float(1000 + 10 * max(map(sum, packings)))
        ranks.append(Measured(sum(times) + 3.0, sum(times), 0.01, peak, times))
    return read_round(settings, measured, ranks, elapsed_s=0.1, busy_s=0.05)


def run_all(
    settings: ProfilingSettings, noise: Noise, before: tuple[RoundRecord, ...] = (), most_tokens: int = 10**9
) -> Progress:
    """Measure until nothing is left."""
    progress = Progress(settings, before)
    while (following := progress.next_round) is not None:
        assert len(progress.records) < 10_000
        record = run_round(progress, following, noise, most_tokens)
        progress = Progress(settings, (*progress.records, record))
    return progress


def noise_of(spread: float, seed: int = 0) -> Noise:
    draw = random.Random(seed)  # noqa: S311 - noise, not a secret
    return lambda: 1.0 + spread * draw.random()
