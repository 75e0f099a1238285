"""What every store owes the service, whatever it is built on."""

from abc import ABC, abstractmethod
from dataclasses import dataclass


class StoreUnavailable(Exception):  # noqa: N818 - names the state the caller finds the store in
    """The store cannot be opened, read or written; the message says which one, why, and what to do."""


class ProfileConflict(Exception):  # noqa: N818 - names what the caller ran into
    """Another profile already stands under this name."""


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


@dataclass(frozen=True)
class PlanRow:
    """A stored plan.

    Attributes
    ----------
    request_key
        Digest of everything the plan depends on.
    digest
        The plan's own digest; plans of several requests may share it.
    body
        The plan as JSON, UTF-8, exactly as it was first answered.
    """

    request_key: str
    digest: str
    body: bytes


class Store(ABC):
    """Profiles by name and plans by request.

    Obligations of every back end, held by one conformance suite:

    * What a ``put`` returned is durable: it is found again by any other store object on the same database, also
      after a restart, byte for byte.
    * Nothing stored ever changes. Of several writers to one name or key, at the same time or one after another and
      in one process or several, exactly one wins and all are told what the winner wrote.
    * Every method may be called from several threads at once, and blocks for a bounded time.
    * A database that cannot be used raises `StoreUnavailable`, never a driver's own error.
    """

    @abstractmethod
    def put_profile(self, row: ProfileRow) -> bool:
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
    def profile(self, name: str) -> ProfileRow | None:
        """Return the profile of that name, or None."""

    @abstractmethod
    def profiles(self) -> list[ProfileRow]:
        """Return all profiles, ascending by name."""

    @abstractmethod
    def put_plan(self, row: PlanRow) -> PlanRow:
        """Store a plan unless its request already has one, and return the plan that the request has from now on."""

    @abstractmethod
    def plan_of_request(self, request_key: str) -> PlanRow | None:
        """Return the plan of a request, or None."""

    @abstractmethod
    def plan_with_digest(self, digest: str) -> PlanRow | None:
        """Return the plan with this digest that was stored first, or None."""

    @abstractmethod
    def check(self) -> None:
        """Raise `StoreUnavailable` unless the database can be read now."""

    @abstractmethod
    def close(self) -> None:
        """Release connections; the store is not used afterwards."""
