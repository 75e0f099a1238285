"""Names as they are typed: checked before they become part of an address."""

import re

from pydantic import TypeAdapter, ValidationError

from planner_client.commands.service import Ending
from planner_client.contract.scalars import JobName, ProfileName

_DIGEST = re.compile(r"(?:sha256:)?([0-9a-f]{64})", re.IGNORECASE)
LONGEST_SHOWN = 60
_RULE = "names begin with a letter or digit and have at most 128 of A-Z a-z 0-9 . _ -"

_JOB: TypeAdapter[str] = TypeAdapter(JobName)
_PROFILE: TypeAdapter[str] = TypeAdapter(ProfileName)


def job_named(name: str) -> str:
    """Return a job's name; end the command if no job can be called so."""
    return _checked("job", _JOB, name)


def profile_named(name: str) -> str:
    """Return a profile's name; end the command if no profile can be called so."""
    return _checked("profile", _PROFILE, name)


def digest_named(text: str) -> str:
    """Return a plan's digest, which may be typed without ``sha256:``; end the command if it is none."""
    found = _DIGEST.fullmatch(text)
    if found is None:
        raise Ending(
            f"{_shown(text)} is no plan's digest; give all its 64 digits, as `hydraulis plans list` prints them"
        )
    return f"sha256:{found[1].lower()}"


def _checked(kind: str, adapter: TypeAdapter[str], name: str) -> str:
    try:
        return adapter.validate_python(name)
    except ValidationError:
        raise Ending(f"no {kind} can be called {_shown(name)}: {_RULE}") from None


def _shown(text: str) -> str:
    return repr(text if len(text) <= LONGEST_SHOWN else text[:LONGEST_SHOWN] + "...")
