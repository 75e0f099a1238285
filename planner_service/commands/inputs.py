"""What commands are given as text and files, read into wire values.

Bad input is a ValueError that says what to change.
"""

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from planner_client.contract import Profile, ReplicaGroup, parse_strategy
from planner_service.commands.failures import first_error
from planner_service.profiles import builtin_profiles

_LAYOUT = re.compile(r"\(?\s*(\d{1,9})\s*,\s*(\d{1,9})\s*(?:,\s*(\d{1,9})\s*)?\)?")


@dataclass(frozen=True)
class Cluster:
    """GPUs by type, with the profile of each type, as a request takes them."""

    profiles: tuple[Profile, ...]
    request_fields: dict[str, Any]


def read_profile(name_or_file: str) -> Profile:
    """Find a built-in profile, or read one from a file.

    Raises
    ------
    ValueError
        If there is none of that name, or the file does not hold one.
    """
    known = builtin_profiles()
    if name_or_file in known:
        return known[name_or_file]
    if not Path(name_or_file).is_file() and not name_or_file.endswith(".json"):
        raise ValueError(
            f"there is no profile {name_or_file!r}; use {', '.join(known)}, or a JSON file that holds a profile"
        )
    content = _read(name_or_file, "profile")
    try:
        return Profile.model_validate_json(content)
    except ValidationError as error:
        hint = (
            "; it holds raw samples, which a planner service fits (POST /v1/profiles)"
            if b'"samples"' in content
            else ""
        )
        raise ValueError(f"profile {name_or_file} cannot be used: {first_error(error)}{hint}") from error


def _read(name: str, what: str) -> bytes:
    try:
        return Path(name).read_bytes()
    except OSError as error:
        raise ValueError(f"{what} {name} cannot be read: {error.strerror}") from error


def read_cluster(gpus: str, profiles: Sequence[str]) -> Cluster:
    """Pair GPUs with profiles.

    Parameters
    ----------
    gpus
        A number, or ``DEVICE:NUMBER`` for each type of GPU with commas between.
    profiles
        Names or files; with several types of GPU each is of the type that its profile names.

    Raises
    ------
    ValueError
        If a number cannot be read, or a type has no profile or more than one.
    """
    found = [read_profile(name) for name in profiles]
    if _is_number(gpus):
        if len(found) != 1:
            raise ValueError(
                f"--gpus {gpus} is one type of GPU but there are {len(found)} profiles; write "
                + ",".join(f"{profile.device.name}:N" for profile in found)
            )
        return Cluster((found[0],), {"profile": found[0], "num_gpus": int(gpus)})
    pools = [_pool(part, gpus) for part in gpus.split(",")]
    by_device: dict[str, Profile] = {}
    for profile in found:
        if profile.device.name in by_device:
            raise ValueError(
                f"profiles {by_device[profile.device.name].name} and {profile.name} are both of "
                f"{profile.device.name!r}; give one for each type of GPU"
            )
        by_device[profile.device.name] = profile
    named = [device for device, _ in pools]
    for device in named:
        if device not in by_device:
            raise ValueError(f"no profile is of {device!r}; give one with --profile, or use {', '.join(by_device)}")
    if unused := sorted(by_device.keys() - set(named)):
        raise ValueError(f"profile {by_device[unused[0]].name} is of {unused[0]!r}, which --gpus does not name")
    return Cluster(
        tuple(by_device[device] for device in named),
        {"devices": [{"profile": by_device[device], "num_gpus": number} for device, number in pools]},
    )


def _is_number(text: str) -> bool:
    digits = text.strip().removeprefix("-")
    return digits.isascii() and digits.isdigit() and len(digits) <= 12


def _pool(part: str, gpus: str) -> tuple[str, int]:
    device, colon, number = part.rpartition(":")
    if not colon or not device.strip() or not _is_number(number):
        raise ValueError(
            f"--gpus {gpus!r} cannot be read at {part!r}; give a number, or DEVICE:NUMBER with commas between, "
            "for example 'A800 80GB:32,A100 40GB:32'"
        )
    return device.strip(), int(number)


def read_strategies(texts: Sequence[str] | None, file: str | None) -> list[list[ReplicaGroup]]:
    """Read candidates: those written out, then those of a file.

    Raises
    ------
    ValueError
        If a strategy cannot be read, or the file is not one that holds strategies.
    """
    found = [parse_strategy(text) for text in texts or []]
    if file is None:
        return found
    raw = _read(file, "strategies")
    try:
        content = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"strategies {file} are not JSON: {error}") from error
    entries = content.get("strategies") if isinstance(content, dict) else content
    if not isinstance(entries, list) or not entries:
        raise ValueError(
            f"strategies {file} hold no list of strategies; give a file that `hydraulis propose --output` wrote, or a "
            'list such as ["(16,1)x4"]'
        )
    for position, entry in enumerate(entries):
        text = entry.get("strategy") if isinstance(entry, dict) else entry
        try:
            found.append(parse_strategy(text if isinstance(text, str) else json.dumps(text)))
        except ValueError as error:
            raise ValueError(f"strategies {file} element {position}: {error}") from error
    return found


def read_layouts(texts: Sequence[str] | None) -> list[dict[str, int]] | None:
    """Read layouts ``(tp,pp)`` or ``(tp,cp,pp)``; None if none are given.

    Raises
    ------
    ValueError
        If one cannot be read.
    """
    if not texts:
        return None
    layouts = []
    for text in texts:
        match = _LAYOUT.fullmatch(text.strip())
        if match is None:
            raise ValueError(f"layout {text!r} cannot be read; write (tp,pp) or (tp,cp,pp), for example (8,1)")
        first, second, third = match.groups()
        layouts.append(
            {"tp": int(first), "cp": int(second), "pp": int(third)} if third else {"tp": int(first), "pp": int(second)}
        )
    return layouts


def read_optimizer_layout(text: str | None) -> dict[str, int] | None:
    """Read ``DP,TP,PP``.

    Raises
    ------
    ValueError
        If it cannot be read.
    """
    if text is None:
        return None
    parts = text.split(",")
    if len(parts) != 3 or not all(_is_number(part) for part in parts):
        raise ValueError(f"optimizer layout {text!r} cannot be read; write DP,TP,PP, for example 4,16,1")
    dp, tp, pp = (int(part) for part in parts)
    return {"dp": dp, "tp": tp, "pp": pp}


def check_writable(option: str, path: Path | None) -> None:
    """Refuse a place that cannot be written before the long work, not after.

    Raises
    ------
    ValueError
        Naming the option and the path.
    """
    if path is None:
        return
    if path.is_dir() or not path.parent.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ValueError(f"{option} {path} cannot be written; name a file in a folder that exists and can be written")
