"""What every store owes the service, whatever it is built on."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from planner_service.store.access_store import AccessStore
from planner_service.store.job_store import JobStore
from planner_service.store.learn_store import LearnStore
from planner_service.store.node_store import NodeStore
from planner_service.store.plan_store import PlanStore
from planner_service.store.profile_store import ProfileStore


@dataclass(frozen=True)
class IterationChanged:
    """Something happened to an iteration, perhaps in another process.

    Attributes
    ----------
    kind
        ``due`` if a solver may take it up now, ``finished`` if it has its plan or will have none.
    job, iteration
        Which one.
    """

    kind: Literal["due", "finished"]
    job: str
    iteration: int


@dataclass(frozen=True)
class StoreUse:
    """One use of the database, for those who count.

    Attributes
    ----------
    operation
        Whether it was to ``read`` alone, or to ``write``.
    seconds
        How long it took, waits and further attempts included.
    num_attempts
        Times that it was tried.
    has_failed
        Whether the database could not be used.
    """

    operation: Literal["read", "write"]
    seconds: float
    num_attempts: int
    has_failed: bool


KEEP_AUDIT_S = 400 * 86_400.0
"""Audit entries are kept a little longer than the year that most audits look back."""

KEEP_NODES_S = 7 * 86_400.0
"""Nodes are kept for a week after their agents were last heard of."""

OnChange = Callable[[IterationChanged], None]
"""Called in a thread of the store's own; returns at once and raises nothing."""

OnUse = Callable[[StoreUse], None]
"""Called in the thread that used the database; returns at once and raises nothing."""


class Store(ABC):
    """Everything the service keeps.

    Obligations of every back end, held by one conformance suite:

    * What a method that changes something returned from is durable: it is found again by any other store object on the
      same database, also after a restart or a killed process, byte for byte.
    * A plan or profile once stored never changes. Of several writers to one name or key, at the same time or one after
      another, in one process or several, exactly one wins and all are told what the winner wrote.
    * Every method may be called from several threads at once, and blocks for a bounded time.
    * A database that cannot be used raises `StoreUnavailable`, never a driver's own error. One that was lost for a
      while (a server restarted, a connection cut) works again without a new store object.
    * Times are the database's, so that the clocks of several services need not agree.

    Attributes
    ----------
    profiles, plans, jobs, learning, access, nodes
        What is kept, by kind.
    """

    profiles: ProfileStore
    plans: PlanStore
    jobs: JobStore
    learning: LearnStore
    access: AccessStore
    nodes: NodeStore

    @abstractmethod
    def listen(self, on_change: OnChange) -> None:
        """Call ``on_change`` for every iteration that changes from now on; changes by other processes included.

        Notices may be lost when the database is, and come late: listeners look for themselves now and then. A SQLite
        file carries no notices between processes.
        """

    @abstractmethod
    def watch(self, on_use: OnUse) -> None:
        """Call ``on_use`` after every use of the database from now on."""

    @abstractmethod
    def check(self) -> None:
        """Raise `StoreUnavailable` unless the database can be read now."""

    @abstractmethod
    def prune(
        self,
        *,
        keep_iterations_s: float,
        keep_plans_s: float,
        keep_audit_s: float = KEEP_AUDIT_S,
        keep_nodes_s: float = KEEP_NODES_S,
    ) -> int:
        """Delete what is too old, a bounded number of rows each call; return how many went.

        Counted are iterations, plans, entries of the audit record and nodes.

        Finished iterations go with their batches and timings when they finished more than ``keep_iterations_s`` ago;
        unfinished ones that began that long ago go, too, unless a solver has them or their deadline is still to come.
        What deleted jobs left behind goes at once. Plans go when they were stored more than
        ``keep_plans_s`` ago and no iteration that is kept names them. Entries of the audit record go when they are
        older than ``keep_audit_s``; their numbers are not given again. Nodes go when they were last reported more
        than ``keep_nodes_s`` ago. Jobs, profiles and tokens stay until they are deleted.
        """

    @abstractmethod
    def close(self) -> None:
        """Release connections and threads; the store is not used afterwards."""
