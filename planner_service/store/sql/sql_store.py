"""The store on SQLAlchemy, put together."""

from sqlalchemy import select

from planner_service.store.interface import KEEP_AUDIT_S, KEEP_NODES_S, OnChange, OnUse, Store
from planner_service.store.sql.access import SqlAccessStore
from planner_service.store.sql.address import database_url
from planner_service.store.sql.database import Database
from planner_service.store.sql.jobs import SqlJobStore
from planner_service.store.sql.learning import SqlLearnStore
from planner_service.store.sql.limits import StoreLimits
from planner_service.store.sql.nodes import SqlNodeStore
from planner_service.store.sql.notices import NoticeBoard
from planner_service.store.sql.plans import SqlPlanStore
from planner_service.store.sql.profiles import SqlProfileStore
from planner_service.store.sql.prune import prune
from planner_service.store.sql.tables import ITERATIONS, JOBS, PLANS, PROFILES
from planner_service.store.sql.upgrade import upgrade


class SqlStore(Store):
    """Everything in one SQLite or PostgreSQL database, whose tables are created or upgraded where needed.

    Parameters
    ----------
    database
        SQLAlchemy URL or path of a SQLite file; ``sqlite://`` keeps everything in memory, for tests.
    limits
        How long it may block.

    Raises
    ------
    StoreUnavailable
        If the database cannot be opened, is no database, holds tables of another shape or of a newer version.
    """

    def __init__(self, database: str, *, limits: StoreLimits | None = None) -> None:
        self._database = Database(database_url(database), limits or StoreLimits())
        self.profiles = SqlProfileStore(self._database)
        self.plans = SqlPlanStore(self._database)
        self.jobs = SqlJobStore(self._database)
        self.access = SqlAccessStore(self._database)
        self.nodes = SqlNodeStore(self._database)
        self.learning = SqlLearnStore(self._database)
        self._notices = NoticeBoard(self._database)
        try:
            upgrade(self._database)
            self._database.hold_file()
            self.check()
        except BaseException:
            self._database.close()
            raise

    def listen(self, on_change: OnChange) -> None:
        """Call ``on_change`` for every iteration that changes from now on; see `Store.listen`."""
        self._notices.listen(on_change)

    def watch(self, on_use: OnUse) -> None:
        """Call ``on_use`` after every use of the database from now on."""
        self._database.on_use = on_use

    def check(self) -> None:
        """Raise `StoreUnavailable` unless the database can be read now."""
        for column in (PROFILES.c.name, PLANS.c.number, JOBS.c.number, ITERATIONS.c.number):
            self._database.first(select(column).limit(1))

    def prune(
        self,
        *,
        keep_iterations_s: float,
        keep_plans_s: float,
        keep_audit_s: float = KEEP_AUDIT_S,
        keep_nodes_s: float = KEEP_NODES_S,
    ) -> int:
        """Delete what is too old, a bounded number of rows each call; see `Store.prune`."""
        return prune(
            self._database,
            keep_iterations_s=keep_iterations_s,
            keep_plans_s=keep_plans_s,
            keep_audit_s=keep_audit_s,
            keep_nodes_s=keep_nodes_s,
        )

    def close(self) -> None:
        """Release connections and threads; the store is not used afterwards."""
        self._notices.close()
        self._database.close()
