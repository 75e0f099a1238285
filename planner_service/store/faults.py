"""What a store can run into."""

from planner_service.store.plan_store import PlanRow


class StoreUnavailable(Exception):  # noqa: N818 - names the state the caller finds the store in
    """The store cannot be opened, read or written; the message says which one, why, and what to do."""


class ProfileConflict(Exception):  # noqa: N818 - names what the caller ran into
    """Another profile already stands under this name."""


class ProfileInUse(Exception):  # noqa: N818 - names what the caller ran into
    """A job was registered with this profile; the message names one."""


class JobConflict(Exception):  # noqa: N818 - names what the caller ran into
    """Another job already stands under this name."""


class JobUnknown(Exception):  # noqa: N818 - names what the caller ran into
    """There is no job of this name, or it was deleted a moment ago."""


class BatchConflict(Exception):  # noqa: N818 - names what the caller ran into
    """A source reported something else for this iteration before.

    Attributes
    ----------
    source
        Which one.
    """

    def __init__(self, source: str) -> None:
        super().__init__(source)
        self.source = source


class IterationClosed(Exception):  # noqa: N818 - names what the caller ran into
    """An iteration takes no reports any more: a solver has it, or it is finished.

    Attributes
    ----------
    source
        The source whose report came too late.
    """

    def __init__(self, source: str) -> None:
        super().__init__(source)
        self.source = source


class PlanStands(Exception):  # noqa: N818 - names what the caller ran into
    """The request of an iteration has another plan already, which holds.

    Attributes
    ----------
    row
        That plan.
    """

    def __init__(self, row: PlanRow) -> None:
        super().__init__(row)
        self.row = row


class TooManyOpen(Exception):  # noqa: N818 - names what the caller ran into
    """The job has as many unfinished iterations as it may.

    Attributes
    ----------
    num_open
        How many it has.
    """

    def __init__(self, num_open: int) -> None:
        super().__init__(num_open)
        self.num_open = num_open


class TokenConflict(Exception):  # noqa: N818 - names what the caller ran into
    """A token of this name was given already."""
