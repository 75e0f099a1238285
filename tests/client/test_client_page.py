"""The page about the client: its example is run as written, with and without a planner."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent.parent / "service"))
from served_planner import servers

ROOT = Path(__file__).parent.parent.parent
(EXAMPLE,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "client.md").read_text(), re.DOTALL)
DOCUMENTED_URL = "http://127.0.0.1:8000"


def run(url: str, directory: Path) -> list[str]:
    assert DOCUMENTED_URL in EXAMPLE
    code = EXAMPLE.replace(DOCUMENTED_URL, url)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=False, cwd=directory
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.timeout(180)
def test_the_documented_example_runs_with_a_planner_and_goes_on_without(tmp_path: Path) -> None:
    with servers(tmp_path) as start:
        served = start("--workers", "1")
        assert [line.split()[1] for line in run(served.url, tmp_path)] == ["service"] * 3
        assert (tmp_path / "last-good-plan.json").exists()
        served.stop()
        assert [line.split()[1] for line in run(served.url, tmp_path)] == ["fallback"] * 3
