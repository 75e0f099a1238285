"""What a request says about how many micro-batches a replica runs and how they are charged."""

from dataclasses import dataclass

from planner_service.core.problem import Layout, Options, Strategy


@dataclass(frozen=True, slots=True)
class PackingRules:
    """Rules that every packing has to keep.

    Attributes
    ----------
    is_padded
        Each sequence of a micro-batch takes, in tokens and in time, as much as its longest.
    equal_counts
        Every replica runs the same number of micro-batches.
    count_multiple
        The number of micro-batches of a busy replica is a multiple of this.
    at_least_stages
        A busy replica runs at least as many micro-batches as it has pipeline stages.
    idle_allowed
        A replica may be left without sequences. Equal counts leave none idle, whatever this says.
    """

    is_padded: bool = False
    equal_counts: bool = False
    count_multiple: int = 1
    at_least_stages: bool = False
    idle_allowed: bool = True

    @classmethod
    def of(cls, options: Options) -> "PackingRules":
        """Read the rules off a problem's options."""
        return cls(
            is_padded=options.is_padded,
            equal_counts=options.equal_counts,
            count_multiple=options.count_multiple,
            at_least_stages=options.at_least_stages,
            idle_allowed=options.idle_allowed,
        )

    @property
    def is_free(self) -> bool:
        """Whether nothing is constrained."""
        return self == FREE

    @property
    def may_idle(self) -> bool:
        """Whether a replica may be left without sequences while others have some."""
        return self.idle_allowed and not self.equal_counts

    def permitted(self, pp: int, at_least: int = 1) -> int:
        """Smallest number of micro-batches, ``at_least`` or more, that a busy replica of pp stages may run."""
        floor = max(1, at_least, pp if self.at_least_stages else 1)
        return -(-floor // self.count_multiple) * self.count_multiple

    def permits(self, pp: int, count: int) -> bool:
        """Whether a replica of pp stages may run this many micro-batches, 0 being an idle one."""
        return self.permitted(pp, count) == count if count else self.may_idle

    def common(self, strategy: Strategy, at_least: int = 1) -> int:
        """Smallest number of micro-batches, ``at_least`` or more, that all replicas of a strategy may run."""
        return self.permitted(max(kind.pp for kind, _ in strategy.groups), at_least)

    def __str__(self) -> str:
        named = {
            "padded cost": self.is_padded,
            "equal micro-batch counts": self.equal_counts,
            f"counts that are multiples of {self.count_multiple}": self.count_multiple > 1,
            "at least as many micro-batches as stages": self.at_least_stages,
            "no idle replica": not self.may_idle,
        }
        return ", ".join(name for name, is_set in named.items() if is_set) or "no rule"


FREE = PackingRules()


def num_process_groups(layout: Layout) -> int:
    """Count the tensor, context and pipeline groups of two ranks or more that one replica needs."""
    tensor = layout.cp * layout.pp if layout.tp > 1 else 0
    context = layout.tp * layout.pp if layout.cp > 1 else 0
    pipeline = layout.tp * layout.cp if layout.pp > 1 else 0
    return tensor + context + pipeline


def num_process_groups_of(strategy: Strategy) -> int:
    """Count the process groups of two ranks or more that a strategy needs."""
    return sum(num_process_groups(kind.layout) * num_replicas for kind, num_replicas in strategy.groups)
