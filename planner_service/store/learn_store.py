"""What is learned of jobs from their measured times: a state that moves on, and numbered versions that stay."""

from abc import ABC, abstractmethod
from dataclasses import dataclass


@dataclass(frozen=True)
class LearnerRow:
    """What is learned of a job so far.

    Attributes
    ----------
    revision
        How often it moved on.
    body
        The state as JSON, UTF-8.
    """

    revision: int
    body: bytes


@dataclass(frozen=True)
class LearnedRow:
    """One version of what a job's plans are made with.

    Attributes
    ----------
    version
        Versions of a job are numbered from 1.
    body
        The version as JSON, UTF-8.
    created_at
        When it was stored (seconds since 1970, UTC).
    """

    version: int
    body: bytes
    created_at: float = 0.0


@dataclass(frozen=True)
class MeasuredRow:
    """One report of measured times.

    Attributes
    ----------
    number
        Reports of a job are numbered in the order they were stored, with gaps.
    iteration
        Which iteration they are of.
    body
        The times as JSON, UTF-8.
    """

    number: int
    iteration: int
    body: bytes


class LearnStore(ABC):
    """What is learned of jobs; see `planner_service.store.interface.Store` for what every method owes.

    States move on by compare-and-set: of several who read a state and want to put the next one, exactly one succeeds,
    and the version that it brings is stored with it or not at all. Versions never change and go with their job.
    """

    @abstractmethod
    def state(self, job: str) -> LearnerRow | None:
        """Return what is learned of a job, or None if nothing is yet."""

    @abstractmethod
    def advance(self, job: str, revision: int, body: bytes, version: LearnedRow | None = None) -> bool:
        """Put the next state, and a version if there is a new one.

        Parameters
        ----------
        revision
            Of the state that was read; 0 if there was none.
        version
            Its ``created_at`` does not count.

        Returns
        -------
        bool
            Whether the state was still the one that was read; if not, nothing is stored.

        Raises
        ------
        JobUnknown
            If there is no such job.
        """

    @abstractmethod
    def newest(self, job: str) -> LearnedRow | None:
        """Return the newest version, or None if there is none."""

    @abstractmethod
    def version(self, job: str, version: int) -> LearnedRow | None:
        """Return one version, or None."""

    @abstractmethod
    def versions(self, job: str, *, after: int | None, limit: int) -> list[LearnedRow]:
        """Return versions before a number, descending, from the newest on; at most ``limit``."""

    @abstractmethod
    def measured(self, job: str, *, after: int, limit: int) -> list[MeasuredRow]:
        """Return reports of measured times with larger numbers, ascending, at most ``limit``.

        Whoever has seen a report has seen, or can see, all of the job with smaller numbers.
        """
