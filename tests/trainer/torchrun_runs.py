"""Starts runs under torchrun."""

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).parent / "torchrun_script.py"


@dataclass
class TorchrunEnd:
    """How a torchrun ended, and where it wrote."""

    folder: Path
    exit_code: int
    stderr: str
    taken_s: float

    @property
    def metrics(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / "metrics.jsonl").read_text().splitlines()]


def torchrun(url: str, folder: Path, what: str) -> TorchrunEnd:
    started = time.monotonic()
    path = [str(SCRIPT.parent), str(SCRIPT.parents[1] / "sequences"), os.environ.get("PYTHONPATH", "")]
    # torchrun stops the other ranks when it sees one dead; looking less often leaves them time to say what they met.
    looks = ["--monitor-interval", "5"]
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *looks]
    done = subprocess.run(
        [sys.executable, *launcher, str(SCRIPT), url, str(folder), what],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))},
    )
    return TorchrunEnd(folder, done.returncode, done.stderr, time.monotonic() - started)
