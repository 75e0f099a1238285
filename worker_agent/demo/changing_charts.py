"""The chart of the demo's second part: which ranks formed which replicas, and what the loss did meanwhile."""

from typing import TYPE_CHECKING

from worker_agent.demo.changing import ChangingRecord, ReplicaRun
from worker_agent.demo.chart_style import GRID, INK, PLAIN, PLAIN_SOFT, PLANNED, PLANNED_SOFT

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from worker_agent.demo.outcome import Outcome

_WIDTH = 0.86
_MARGIN = 0.06


def draw_strategies(figure: "Figure", outcome: "Outcome") -> None:
    """Draw replicas as boxes over ranks and iterations, and below them the loss next to the reference's."""
    changing = outcome.changing
    strategies, losses = figure.subplots(2, 1, sharex=True, height_ratios=(1.35, 1))
    for record in changing.records:
        for replica in record.replicas:
            _draw_replica(strategies, record, replica)
    strategies.set_title("Each iteration's replicas: layout (tp,pp) and tokens", loc="left")
    strategies.set_ylabel("rank")
    strategies.set_ylim(changing.num_ranks - 0.4, -0.6)
    strategies.set_yticks(range(changing.num_ranks))
    strategies.grid(visible=False)
    _draw_losses(losses, changing.records)
    losses.set_xlim(-0.6, len(changing.records) - 0.4)


def _draw_replica(axes: "Axes", record: ChangingRecord, replica: ReplicaRun) -> None:
    """Draw one box for each run of neighbouring ranks."""
    from matplotlib.patches import Rectangle  # noqa: PLC0415 - slow to import, and only a report needs it

    for first, last in replica.rank_runs:
        axes.add_patch(
            Rectangle(
                (record.iteration - _WIDTH / 2, first - 0.5 + _MARGIN),
                _WIDTH,
                last - first + 1 - 2 * _MARGIN,
                facecolor=_colour(replica),
                edgecolor="none",
            )
        )
        middle = (first + last) / 2
        axes.text(record.iteration, middle - 0.2, f"({replica.tp},{replica.pp})", ha="center", va="center", fontsize=9)
        axes.text(record.iteration, middle + 0.2, f"{replica.num_tokens:,}", ha="center", va="center", fontsize=8)


def _colour(replica: ReplicaRun) -> str:
    if not replica.num_micro_batches:
        return GRID
    return PLANNED_SOFT if len(replica.ranks) > 1 else PLAIN_SOFT


def _draw_losses(axes: "Axes", records: tuple[ChangingRecord, ...]) -> None:
    steps = [record.iteration for record in records]
    axes.plot(steps, [record.reference_loss for record in records], color=PLAIN, linewidth=5, label="one process alone")
    axes.plot(
        steps,
        [record.loss for record in records],
        color=PLANNED,
        linewidth=1.6,
        marker="D",
        markersize=4,
        label="changing strategies",
    )
    axes.set_title("Training loss", loc="left", color=INK)
    axes.set_ylabel("loss (nats per token)")
    axes.set_xlabel("iteration and its strategy")
    axes.set_xticks(steps, [f"{record.iteration}\n" + record.strategy.replace(",(", ",\n(") for record in records])
    axes.legend(loc="upper right", ncols=2, bbox_to_anchor=(1, 1.25))
