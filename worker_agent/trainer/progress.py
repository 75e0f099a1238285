"""How far a run has come, as a value and as a checkpoint's manifest tells of it."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from worker_agent.trainer.sampling import DataPosition


@dataclass(frozen=True)
class DataOrder:
    """In which order a run reads its data.

    Attributes
    ----------
    seed
        Decides the order, if it is shuffled.
    shuffled
        Whether it is.
    num_sequences
        Of the data; None where it does not say how many it has.
    """

    seed: int = 0
    shuffled: bool = False
    num_sequences: int | None = None

    @classmethod
    def of(cls, data: Any, seed: int, *, shuffle: bool) -> "DataOrder":
        """Return the order in which data is read: only what has ``len(data)`` and ``data[index]`` is shuffled."""
        is_indexed = hasattr(data, "__len__") and hasattr(data, "__getitem__")
        return cls(seed, shuffle and is_indexed, len(data) if is_indexed else None)

    def difference(self, other: "DataOrder", position: DataPosition) -> str | None:
        """Return what keeps a position in data read in this order from meaning the same in another; None if nothing.

        At the beginning of an epoch nothing does but the seed, and data in its own order may grow.
        """
        if self.seed != other.seed:
            return f"in the order of seed {self.seed} but this run has seed {other.seed}; give seed={self.seed}"
        if position.slot == 0:
            return None
        if self.shuffled != other.shuffled:
            own, others = ("shuffled" if order.shuffled else "in its own order" for order in (self, other))
            return (
                f"{own} and stopped at slot {position.slot} of epoch {position.epoch}, but this run reads it {others}; "
                f"give shuffle={self.shuffled} and the data it was written with"
            )
        if self.shuffled and self.num_sequences != other.num_sequences:
            return (
                f"in a random order of {self.num_sequences} sequences and stopped at slot {position.slot} of epoch "
                f"{position.epoch}, but this run has {other.num_sequences}; give the data it was written with"
            )
        return None


@dataclass(frozen=True)
class Progress:
    """How far a run has come.

    Attributes
    ----------
    num_iterations
        Iterations done.
    position
        Where the next batch begins.
    plan_digest
        Digest of the last plan that was run.
    order
        In which order the data is read.
    """

    num_iterations: int = 0
    position: DataPosition = field(default_factory=DataPosition)
    plan_digest: str | None = None
    order: DataOrder = field(default_factory=DataOrder)

    def document(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return asdict(self)

    @classmethod
    def of_document(cls, told: object) -> "Progress":
        """Read it from JSON values.

        Raises
        ------
        ValueError
            If a value is missing, unknown or out of its range; it names the value.
        """
        fields = _fields(told, "progress", "num_iterations", "position", "plan_digest", "order")
        position = _fields(fields["position"], "progress.position", "epoch", "slot")
        order = _fields(fields["order"], "progress.order", "seed", "shuffled", "num_sequences")
        digest, num_sequences, shuffled = fields["plan_digest"], order["num_sequences"], order["shuffled"]
        if digest is not None and not isinstance(digest, str):
            raise ValueError(f"progress.plan_digest is {digest!r}, and no digest")
        if not isinstance(shuffled, bool):
            raise ValueError(f"progress.order.shuffled is {shuffled!r}, neither true nor false")  # noqa: TRY004 - a value read
        return cls(
            _count(fields["num_iterations"], "progress.num_iterations"),
            DataPosition(*(_count(position[name], f"progress.position.{name}") for name in ("epoch", "slot"))),
            digest,
            DataOrder(
                _count(order["seed"], "progress.order.seed"),
                shuffled,
                None if num_sequences is None else _count(num_sequences, "progress.order.num_sequences"),
            ),
        )


def _fields(told: object, where: str, *names: str) -> Mapping[str, Any]:
    if not isinstance(told, dict):
        raise ValueError(f"{where} is {told!r}, and no object")  # noqa: TRY004 - a value read
    if differing := sorted({*told} ^ {*names}):
        raise ValueError(f"{where} {'lacks' if differing[0] in names else 'has an unknown'} {differing[0]!r}")
    return told


def _count(told: object, where: str) -> int:
    if isinstance(told, bool) or not isinstance(told, int) or told < 0:
        raise ValueError(f"{where} is {told!r}, and no count")
    return told
