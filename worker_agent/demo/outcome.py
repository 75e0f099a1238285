"""What a demo run measured, and the figures drawn from it. Pure: no I/O, no torch."""

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from planner_client.contract import LayoutCost, MicroBatchSample
from worker_agent.demo.agreement import MODES_TOLERANCE, relative_difference
from worker_agent.demo.changing import ChangingRun
from worker_agent.demo.corpus import Corpus

Mode = Literal["plain", "planned"]
MODES: tuple[Mode, Mode] = ("plain", "planned")

QUIET_CPU_SHARE = 0.9
"""Ranks that had a core for less of their compute time than this shared it with other work."""


@dataclass(frozen=True)
class IterationRecord:
    """One iteration of one mode, as predicted and as measured.

    Attributes
    ----------
    digest
        The plan that ran.
    loss
        Sum of token losses / global number of targets.
    predicted_ms, measured_ms, cpu_ms
        By rank: makespan under the fitted cost model, wall time and CPU time of the micro-batches.
    wall_ms
        Wall time of the iteration on its slowest rank, exchange and optimizer step included, planning not.
    planning_ms
        The planner's own time.
    fetch_ms
        From asking for the plan to having it, transport included.
    waited_ms
        The part of ``fetch_ms`` that training waited for.
    gap
        Makespan / proven lower bound - 1; None where no bound was proven.
    """

    iteration: int
    mode: Mode
    digest: str
    solved_by: str
    loss: float
    num_sequences: int
    num_tokens: int
    num_micro_batches: int
    predicted_ms: tuple[float, ...]
    measured_ms: tuple[float, ...]
    cpu_ms: tuple[float, ...]
    wall_ms: float
    planning_ms: float
    fetch_ms: float
    waited_ms: float
    gap: float | None

    @property
    def balance(self) -> float:
        """Slowest rank's compute time over the mean of all ranks; 1 is perfect."""
        return max(self.measured_ms) / statistics.fmean(self.measured_ms)

    @property
    def predicted_error(self) -> float:
        """Predicted over measured wall time of the slowest rank, minus 1."""
        return max(self.predicted_ms) / max(self.measured_ms) - 1

    @property
    def predicted_cpu_error(self) -> float:
        """Predicted over measured CPU time of the slowest rank, minus 1: the cost model's own error."""
        return max(self.predicted_ms) / max(self.cpu_ms) - 1


@dataclass(frozen=True)
class ModeFigures:
    """One mode's row of figures; times are means over the iterations.

    ``iteration_ms`` includes the time waited for plans in mode ``planned`` and none in mode ``plain``: a plain data
    loader asks nobody.
    """

    mode: Mode
    iteration_ms: float
    slowest_compute_ms: float
    slowest_cpu_ms: float
    balance: float
    cpu_balance: float
    predicted_balance: float
    predicted_ms: float
    median_abs_error_pct: float
    median_abs_cpu_error_pct: float
    gap: float | None
    planning_ms: float
    fetch_ms: float
    waited_ms: float
    hidden_share: float | None
    final_loss: float


@dataclass(frozen=True)
class FittedLayout:
    """The cost model the service fitted, and how well it predicts samples that the fit never saw."""

    profile: str
    a_ms_per_token2: float
    b_ms_per_token: float
    c_ms: float
    sync_ms: float
    max_tokens: int
    num_samples: int
    r2: float
    median_abs_pct_error: float
    num_held_out: int
    held_out_median_abs_pct_error: float


@dataclass(frozen=True)
class Outcome:
    """Everything a demo run has to tell.

    Attributes
    ----------
    records
        The first part's iterations, of both modes.
    changing
        The second part, whose strategy changes with every iteration.
    """

    settings: dict[str, Any]
    corpus: Corpus
    profile: FittedLayout
    records: tuple[IterationRecord, ...]
    changing: ChangingRun
    elapsed_s: float

    def of_mode(self, mode: Mode) -> list[IterationRecord]:
        """Return one mode's iterations in order."""
        return [record for record in self.records if record.mode == mode]

    @property
    def loss_difference(self) -> float:
        """Largest relative difference of the two modes' losses over all iterations."""
        pairs = zip(self.of_mode("plain"), self.of_mode("planned"), strict=True)
        return max(relative_difference(plain.loss, planned.loss) for plain, planned in pairs)

    @property
    def losses_agree(self) -> bool:
        """Whether the loss did not depend on the plan, within fp32."""
        return self.loss_difference <= MODES_TOLERANCE

    @property
    def speed_up(self) -> float:
        """Plain over planned iteration time, time waited for plans included."""
        plain, planned = (figures(self.of_mode(mode)) for mode in MODES)
        return plain.iteration_ms / planned.iteration_ms

    @property
    def cpu_speed_up(self) -> float:
        """Plain over planned CPU time of the slowest rank: what a quiet machine would show."""
        plain, planned = (figures(self.of_mode(mode)) for mode in MODES)
        return plain.slowest_cpu_ms / planned.slowest_cpu_ms

    @property
    def cpu_share(self) -> float:
        """Share of the ranks' compute time in which they had a core; well below 1, other work was on the machine."""
        compute_ms = sum(sum(record.measured_ms) for record in self.records)
        return sum(sum(record.cpu_ms) for record in self.records) / compute_ms

    @property
    def was_quiet(self) -> bool:
        """Whether the ranks had the machine to themselves, so that wall time speaks of the plans alone."""
        return self.cpu_share >= QUIET_CPU_SHARE

    def as_document(self) -> dict[str, Any]:
        """Return the run as one JSON document."""
        lengths = self.corpus.lengths
        return {
            "settings": self.settings,
            "corpus": {
                "num_files": self.corpus.num_files,
                "num_sequences": len(lengths),
                "num_tokens": self.corpus.num_tokens,
                "num_empty": self.corpus.num_empty,
                "num_over_long": self.corpus.num_over_long,
                "num_over_long_tokens": self.corpus.num_over_long_tokens,
                "max_length": self.corpus.max_length,
            },
            "profile": asdict(self.profile),
            "modes": {mode: asdict(figures(self.of_mode(mode))) for mode in MODES},
            "speed_up": self.speed_up,
            "cpu_speed_up": self.cpu_speed_up,
            "cpu_share": self.cpu_share,
            "loss_difference": self.loss_difference,
            "losses_agree": self.losses_agree,
            "iterations": [asdict(record) for record in self.records],
            "changing_strategies": self.changing.as_document(),
            "elapsed_s": self.elapsed_s,
        }


def figures(records: Sequence[IterationRecord]) -> ModeFigures:
    """Reduce one mode's iterations to its row of figures.

    Raises
    ------
    ValueError
        If there is no iteration to reduce.
    """
    if not records:
        raise ValueError("no iteration ran, so there is nothing to report; ask for at least one")
    mode = records[0].mode
    waits = mode == "planned"
    gaps = [record.gap for record in records if record.gap is not None]
    return ModeFigures(
        mode=mode,
        iteration_ms=statistics.fmean(record.wall_ms + waits * record.waited_ms for record in records),
        slowest_compute_ms=statistics.fmean(max(record.measured_ms) for record in records),
        slowest_cpu_ms=statistics.fmean(max(record.cpu_ms) for record in records),
        balance=statistics.fmean(record.balance for record in records),
        cpu_balance=statistics.fmean(max(record.cpu_ms) / statistics.fmean(record.cpu_ms) for record in records),
        predicted_balance=statistics.fmean(
            max(record.predicted_ms) / statistics.fmean(record.predicted_ms) for record in records
        ),
        predicted_ms=statistics.fmean(max(record.predicted_ms) for record in records),
        median_abs_error_pct=100 * statistics.median(abs(record.predicted_error) for record in records),
        median_abs_cpu_error_pct=100 * statistics.median(abs(record.predicted_cpu_error) for record in records),
        gap=statistics.fmean(gaps) if gaps else None,
        planning_ms=statistics.fmean(record.planning_ms for record in records),
        fetch_ms=statistics.fmean(record.fetch_ms for record in records),
        waited_ms=statistics.fmean(record.waited_ms for record in records),
        hidden_share=hidden_share(records) if waits else None,
        final_loss=records[-1].loss,
    )


def hidden_share(records: Sequence[IterationRecord]) -> float | None:
    """Return the share of the time spent fetching plans that training did not wait for.

    The first plan counts as not hidden: no iteration ran that could hide it. None where no time was spent.
    """
    fetched_ms = sum(record.fetch_ms for record in records)
    waited_ms = sum(min(record.waited_ms, record.fetch_ms) for record in records)
    return 1 - waited_ms / fetched_ms if fetched_ms else None


def predict_ms(cost: LayoutCost, lengths: Sequence[int]) -> float:
    """Return ``c + sum(a s**2 + b s)``: the time of one micro-batch under the cost model (ms)."""
    squares = sum(length**2 for length in lengths)
    return cost.c_ms + cost.a_ms_per_token2 * squares + cost.b_ms_per_token * sum(lengths)


def held_out_error_pct(cost: LayoutCost, samples: Sequence[MicroBatchSample]) -> float:
    """Return the median absolute error (%) of the cost model on samples that the fit never saw.

    Raises
    ------
    ValueError
        If there are none.
    """
    if not samples:
        raise ValueError("no sample was held out, so the fit cannot be checked; measure more of them")
    return 100 * statistics.median(abs(predict_ms(cost, sample.lengths) / sample.time_ms - 1) for sample in samples)
