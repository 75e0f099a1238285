"""Python, the installed packages, and checks that other installed parts bring."""

import platform
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, entry_points, version

from planner_client.doctor.finding import Finding

CHECKS_GROUP = "hydraulis.checks"
DISTRIBUTION = "hydraulis-planner"

PARTS = {
    "client": ("httpx", "numpy", "pydantic"),
    "service": ("fastapi", "ortools", "sqlalchemy", "uvicorn"),
    "agent": ("torch", "safetensors"),
}
"""Packages that each part cannot do without; without the first, which no other part brings, it is not installed."""

PART_OF = {"planner_client": "client", "planner_service": "service", "worker_agent": "agent"}
"""Which part a package of ours is."""

OLDEST_PYTHON = (3, 11)


def version_of(package: str) -> str | None:
    """Return the installed version of a package, or None."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def versions() -> dict[str, str | None]:
    """Return the versions that a report of a defect should name; None for what is not installed."""
    named = {package: version_of(package) for packages in PARTS.values() for package in packages}
    return {DISTRIBUTION: version_of(DISTRIBUTION), "python": platform.python_version(), **named}


def look_at_python() -> Finding:
    """Look at the interpreter."""
    seen = f"{platform.python_implementation()} {platform.python_version()} on {platform.system()} {platform.machine()}"
    if sys.version_info < OLDEST_PYTHON:
        return Finding("python", "failed", seen, "install Python 3.11 or later")
    return Finding("python", "ok", seen)


def look_at_packages(part: str) -> Finding:
    """Look whether what a part needs is installed.

    Parameters
    ----------
    part
        A key of `PARTS`.
    """
    installed = {package: version_of(package) for package in PARTS[part]}
    missing = [package for package, found in installed.items() if found is None]
    extra = DISTRIBUTION if part == "client" else f"{DISTRIBUTION}[{part}]"
    if PARTS[part][0] in missing:
        return Finding(part, "note", f"not installed (pip install '{extra}' brings it)")
    seen = ", ".join(f"{package} {found}" for package, found in installed.items() if found is not None)
    if missing:
        return Finding(part, "failed", f"{seen}; missing: {', '.join(missing)}", f"pip install '{extra}'")
    return Finding(part, "ok", seen)


def look_with_other_parts() -> Iterator[Finding]:
    """Run the checks that installed parts bring; one that breaks is a finding itself."""
    for entry in sorted(entry_points(group=CHECKS_GROUP), key=lambda entry: entry.name):
        needed = PARTS[PART_OF[entry.value.partition(".")[0]]]
        if any(version_of(package) is None for package in needed):
            continue  # `look_at_packages` says that the part is not there, or not whole
        try:
            yield from map(Finding.of, entry.load()())
        except Exception as broken:  # noqa: BLE001 - a doctor that falls ill helps nobody
            yield Finding(
                entry.name,
                "failed",
                f"looking at it failed: {type(broken).__name__}: {broken}",
                "report this, with the output of `hydraulis version --json`",
            )
