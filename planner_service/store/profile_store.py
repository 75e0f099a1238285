"""Profiles by name."""

from abc import ABC, abstractmethod
from dataclasses import dataclass


@dataclass(frozen=True)
class ProfileRow:
    """A stored profile.

    Attributes
    ----------
    name
        Its name, unique in the store.
    content
        The profile as canonical JSON, UTF-8.
    submission
        Digest of what was sent: the profile itself, or the measurement that it was fitted to.
    """

    name: str
    content: bytes
    submission: str


class ProfileStore(ABC):
    """Profiles by name; see `planner_service.store.interface.Store` for what every method owes."""

    @abstractmethod
    def put(self, row: ProfileRow) -> bool:
        """Store a profile under a new name.

        Returns
        -------
        bool
            True if it is new; False if the same profile, or one fitted to the same submission, already stood there.

        Raises
        ------
        ProfileConflict
            If a different profile stands under the name; it stays.
        StoreUnavailable
            If the database cannot be used.
        """

    @abstractmethod
    def get(self, name: str) -> ProfileRow | None:
        """Return the profile of that name, or None."""

    @abstractmethod
    def all(self) -> list[ProfileRow]:
        """Return all profiles, ascending by name."""

    @abstractmethod
    def delete(self, name: str) -> bool:
        """Delete a profile; return whether there was one.

        Raises
        ------
        ProfileInUse
            If a job names it.
        """
