"""Plans by request and by digest."""

from abc import ABC, abstractmethod
from dataclasses import dataclass


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


@dataclass(frozen=True)
class StoredPlan:
    """What a list tells of a plan.

    Attributes
    ----------
    number
        Plans are numbered in the order they were stored, from 1.
    digest
        The plan's digest.
    created_at
        When it was stored (seconds since 1970, UTC).
    num_bytes
        Size of its body.
    """

    number: int
    digest: str
    created_at: float
    num_bytes: int


class PlanStore(ABC):
    """Plans by request; see `planner_service.store.interface.Store` for what every method owes."""

    @abstractmethod
    def put(self, row: PlanRow) -> PlanRow:
        """Store a plan unless its request already has one, and return the plan that the request has from now on."""

    @abstractmethod
    def of_request(self, request_key: str) -> PlanRow | None:
        """Return the plan of a request, or None."""

    @abstractmethod
    def with_digest(self, digest: str) -> PlanRow | None:
        """Return the plan with this digest that was stored first, or None."""

    @abstractmethod
    def page(self, *, after: int, limit: int) -> list[StoredPlan]:
        """Return plans with larger numbers than ``after``, ascending, at most ``limit``."""

    @abstractmethod
    def delete(self, digest: str) -> int:
        """Delete all plans with this digest that no iteration names; return how many went."""
