"""The alerts as rendered, and Prometheus' own tool to try them."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import yaml
from rendered import ROOT, of_kind, rendered

EXTRACTED = ROOT / ".venv" / "promtool" / "usr" / "bin" / "promtool"


def groups() -> list[dict[str, Any]]:
    (found,) = of_kind(rendered("monitoring"), "PrometheusRule")
    return list(found["spec"]["groups"])


def rules() -> list[dict[str, Any]]:
    return [rule for group in groups() for rule in group["rules"]]


def promtool(*arguments: str | Path) -> str:
    """Run promtool and return what it says, which must be that all is well."""
    program = shutil.which("promtool") or (EXTRACTED if EXTRACTED.exists() else None)
    assert program is not None, "promtool is missing: install Prometheus, or run `make promtool`"
    ran = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=100, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def write_rules(folder: Path) -> Path:
    path = folder / "rules.yaml"
    path.write_text(yaml.safe_dump({"groups": groups()}))
    return path
