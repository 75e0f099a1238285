"""What is installed with the product is pinned, so that a scan of the pins is a scan of the product.

Whether a pinned version has a known weakness is not told here: that takes a scanner and its database (security.md).
"""

import re
import tomllib
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PIN = re.compile(r"[A-Za-z0-9._-]+==[A-Za-z0-9._!+-]+")


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = [line.split(";")[0].strip() for line in lines if line.strip() and not line.startswith("#")]
    assert [line for line in pinned if not PIN.fullmatch(line)] == []
    by_name: dict[str, str] = {
        canonicalize_name(name): version for name, _, version in (line.partition("==") for line in pinned)
    }
    assert len(by_name) == len(pinned), "a name is pinned twice"
    return by_name


def test_every_package_that_the_product_brings_is_pinned_to_one_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    declared = [*project["dependencies"], *extras["service"], *extras["tracing"]]
    seen: set[tuple[str, str]] = set()
    waiting = [(Requirement(text), "") for text in declared]
    while waiting:
        requirement, extra = waiting.pop()
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
            continue
        name = canonicalize_name(requirement.name)
        for wanted in ("", *sorted(requirement.extras)):
            if (name, wanted) not in seen:
                seen.add((name, wanted))
                waiting += [(Requirement(text), wanted) for text in distribution(name).requires or ()]
    names = {name for name, _ in seen}
    assert len(names) > 20
    assert sorted(names - pins().keys()) == []
