"""One thing that was looked at, and what to do about it: pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, cast, get_args

Verdict = Literal["ok", "note", "warning", "failed"]
"""``failed``: this does not work. ``warning``: it works, and not as it should. ``note``: nothing to judge."""

Told = tuple[str, str, str, str]
"""A finding as parts without access to this package tell it: subject, verdict, observation, remedy."""


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes
    ----------
    subject
        What was looked at, in one or two words.
    verdict
        How it is; see `Verdict`.
    observation
        What was seen, with figures.
    remedy
        What to do; empty where there is nothing to do.

    Raises
    ------
    ValueError
        If the verdict is none, or what is wrong has no remedy.
    """

    subject: str
    verdict: Verdict
    observation: str
    remedy: str = ""

    def __post_init__(self) -> None:
        if self.verdict not in get_args(Verdict):
            raise ValueError(f"verdict of {self.subject} is {self.verdict!r}; give one of {get_args(Verdict)}")
        if self.verdict in {"warning", "failed"} and not self.remedy:
            raise ValueError(f"{self.subject} is {self.verdict} and nothing says what to do; give a remedy")

    @staticmethod
    def of(told: Told) -> "Finding":
        """Return what a part told."""
        subject, verdict, observation, remedy = told
        return Finding(subject, cast("Verdict", verdict), observation, remedy)


def is_fit(findings: Iterable[Finding]) -> bool:
    """Whether nothing that was looked at has failed."""
    return all(finding.verdict != "failed" for finding in findings)
