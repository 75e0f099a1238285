"""Profiles by name, on SQL."""

from typing import Any

from sqlalchemy import delete, select

from planner_service.store.faults import ProfileConflict, ProfileInUse
from planner_service.store.profile_store import ProfileRow, ProfileStore
from planner_service.store.sql.database import Database, Transaction, is_storable
from planner_service.store.sql.tables import JOB_PROFILES, JOBS, PROFILES


class SqlProfileStore(ProfileStore):
    """Profiles in one table; see `ProfileStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def put(self, row: ProfileRow) -> bool:
        """Store a profile under a new name; see `ProfileStore.put`."""

        def work(transaction: Transaction) -> bool:
            # Who reads the winner's row can find it deleted; then the name is free again.
            while not transaction.insert_unless_there(
                PROFILES, name=row.name, content=row.content, submission=row.submission
            ):
                found = transaction.connection.execute(select(PROFILES).where(PROFILES.c.name == row.name)).first()
                if found is not None:
                    stored = _profile_row(found)
                    if stored.content == row.content or stored.submission == row.submission:
                        return False
                    raise ProfileConflict(row.name)
            return True

        return self._database.write(work)

    def get(self, name: str) -> ProfileRow | None:
        """Return the profile of that name, or None."""
        if not is_storable(name):
            return None
        found = self._database.first(select(PROFILES).where(PROFILES.c.name == name))
        return None if found is None else _profile_row(found)

    def all(self) -> list[ProfileRow]:
        """Return all profiles, ascending by name."""
        return [_profile_row(row) for row in self._database.rows(select(PROFILES).order_by(PROFILES.c.name))]

    def delete(self, name: str) -> bool:
        """Delete a profile that no job names; see `ProfileStore.delete`."""

        def work(transaction: Transaction) -> bool:
            connection = transaction.connection
            # Jobs that are just being registered hold the row until they are there.
            held = connection.execute(select(PROFILES.c.name).where(PROFILES.c.name == name).with_for_update()).first()
            if held is None:
                return False
            named_by = (
                select(JOBS.c.name)
                .join(JOB_PROFILES, JOB_PROFILES.c.job_number == JOBS.c.number)
                .where(JOB_PROFILES.c.profile == name, JOBS.c.name.is_not(None))
                .order_by(JOBS.c.name)
                .limit(1)
            )
            job = connection.execute(named_by).scalar()
            if job is not None:
                raise ProfileInUse(job)
            connection.execute(delete(PROFILES).where(PROFILES.c.name == name))
            return True

        return is_storable(name) and self._database.write(work, repeatable=False)


def _profile_row(row: Any) -> ProfileRow:
    return ProfileRow(name=row.name, content=bytes(row.content), submission=row.submission)
