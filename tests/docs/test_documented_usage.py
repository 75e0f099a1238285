"""What the pages tell readers to type is run as written, against a real service where it needs one."""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from planner_client import PlannerClient
from planner_client.contract import (
    IterationTimings,
    JobSpec,
    Plan,
    ReplicaTiming,
    SourceBatch,
    parse_strategy,
)

ROOT = Path(__file__).parent.parent.parent
BIN = Path(sys.executable).parent
USAGE = (ROOT / "docs" / "usage.md").read_text()
DOCUMENTED_URL = "http://127.0.0.1:8000"


def _console_lines(page: str) -> list[str]:
    return [
        line[2:]
        for block in re.findall(r"```console\n(.*?)```", page, re.DOTALL)
        for line in block.splitlines()
        if line.startswith("$ ")
    ]


def _run(
    command: list[str], url: str = DOCUMENTED_URL, timeout: int = 120, cwd: Path = ROOT
) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "PLANNER_URL": url}
    return subprocess.run(
        command, capture_output=True, text=True, timeout=timeout, check=False, cwd=cwd, env=environment
    )


@contextmanager
def _served(database: Path) -> Iterator[str]:
    with subprocess.Popen(
        [BIN / "hydraulis", "serve", "--port", "0", "--database", database, "--workers", "1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as server:
        try:
            assert server.stdout is not None
            yield server.stdout.readline().split()[-1]
        finally:
            server.terminate()


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with _served(tmp_path_factory.mktemp("docs") / "planner.sqlite3") as address:
        yield address


PLAN_LINES = [
    line for line in _console_lines(USAGE) if line.startswith("hydraulis plan ") and "--strategies" not in line
]


@pytest.mark.parametrize("line", PLAN_LINES)
def test_a_documented_plan_command_works(line: str) -> None:
    done = _run(shlex.split(line))
    assert done.returncode == 0, done.stderr
    if "--json" in line:
        assert json.loads(done.stdout)["replicas"]


@pytest.mark.timeout(500)
def test_the_documented_comparison_works_from_proposal_to_report(tmp_path: Path) -> None:
    block = next(block for block in re.findall(r"```console\n(.*?)```", USAGE, re.DOTALL) if "propose" in block)
    for line in block.strip().splitlines():
        if "bench planning" in line:
            continue  # tests/simulate runs it
        done = _run(shlex.split(line.removeprefix("$ ")), cwd=tmp_path, timeout=300)
        assert done.returncode == 0, done.stderr + done.stdout
    assert json.loads((tmp_path / "proposal.json").read_text())["strategies"]
    assert "<svg" in (tmp_path / "replay.html").read_text()


@pytest.mark.parametrize("line", [line for line in _console_lines(USAGE) if line.startswith("curl ")])
def test_a_documented_call_is_answered(line: str, url: str) -> None:
    done = _run([*shlex.split(line.replace(DOCUMENTED_URL, url)), "--fail-with-body"])
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout


def test_the_documented_look_at_a_service_prints_what_it_shows(tmp_path: Path) -> None:
    block = next(block for block in re.findall(r"```console\n(.*?)```", USAGE, re.DOTALL) if "jobs list" in block)
    with _served(tmp_path / "planner.sqlite3") as url:
        _make_documented_job(url)
        for part in block.removeprefix("$ ").split("\n$ "):
            line, _, shown = part.partition("\n")
            done = _run([*shlex.split(line), "--url", url], cwd=tmp_path)
            assert done.returncode == 0, done.stderr
            assert _without_figures(done.stdout + done.stderr) == _without_figures(shown), line
    exported = (tmp_path / "run-7.csv").read_text().splitlines()
    assert [row.split(",")[:3] for row in exported[1:]] == [["run-7", str(n), "planned"] for n in range(3)] + [
        ["run-7", "3", "collecting"]
    ]


def _make_documented_job(url: str) -> None:
    with PlannerClient(url) as client:
        client.register_job(
            JobSpec(
                name="run-7",
                profile="llama-7b-a100-40g",
                num_gpus=16,
                strategies=[parse_strategy("(8,1)x1,(2,2)x2")],
                sources=["node-0", "node-1"],
                source_wait_ms=600_000,
            )
        )
        for iteration in range(3):
            short = [200 + 97 * number % 3000 + iteration for number in range(40)]
            batches = {
                f"node-{node}": SourceBatch(lengths=[*short, 9000 - 500 * node - 700 * iteration]) for node in range(2)
            }
            client.report_all("run-7", iteration, batches)
            plan = client.iteration_plan("run-7", iteration, wait_s=30)
            assert isinstance(plan, Plan)
            if iteration < 2:
                client.report_timings("run-7", iteration, _measured(plan, iteration))
        client.report("run-7", 3, "node-0", SourceBatch(lengths=[5]))


def _measured(plan: Plan, iteration: int) -> IterationTimings:
    replicas = [
        ReplicaTiming(
            replica=number, wall_ms=1.03 * replica.makespan_ms, micro_batch_ms=[1.0] * len(replica.micro_batches)
        )
        for number, replica in enumerate(plan.replicas)
    ]
    return IterationTimings(digest=plan.digest, iteration=iteration, replicas=replicas)


def _without_figures(text: str) -> list[list[str]]:
    """Words of each line, without figures, times and digests, which another run has others of."""
    return [[re.sub(r"^([0-9a-f]{64}|[\d.,:-]+%?)$", "N", word) for word in line.split()] for line in text.splitlines()]


def test_the_documented_python_works(url: str) -> None:
    code = "\n".join(re.findall(r"```python\n(.*?)```", USAGE, re.DOTALL))
    done = _run([sys.executable, "-c", code.replace(DOCUMENTED_URL, url)])
    assert done.returncode == 0, done.stderr
    assert "sequence-too-long" in done.stdout
    assert "30000" in done.stdout


def test_the_documented_training_script_works(url: str) -> None:
    (line,) = [line for line in _console_lines(USAGE) if line.startswith("torchrun ")]
    done = _run(shlex.split(line), url)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("loss") == 3


def test_the_documented_measurement_works(tmp_path: Path) -> None:
    (line,) = [line for line in _console_lines(USAGE) if line.startswith("hydraulis profile ")]
    output = tmp_path / "measurement.json"
    done = _run(shlex.split(line.replace("measurement.json", str(output))))
    assert done.returncode == 0, done.stderr
    for layout in json.loads(output.read_text())["layouts"]:
        assert len({tuple(sample["lengths"]) for sample in layout["samples"]}) == 8


def test_the_documented_profile_can_be_planned_with(tmp_path: Path) -> None:
    (profile,) = re.findall(r"```json profile\n(.*?)```", USAGE, re.DOTALL)
    (tmp_path / "mine.json").write_text(profile)
    (tmp_path / "lengths.txt").write_text("40000\n" + "500\n" * 200)
    done = _run(
        shlex.split(f"hydraulis plan --profile {tmp_path / 'mine.json'} --gpus 16 --lengths {tmp_path / 'lengths.txt'}")
    )
    assert done.returncode == 0, done.stderr


def test_the_documented_error_is_the_real_one(url: str) -> None:
    (documented,) = re.findall(r"```json\n(.*?)```", USAGE, re.DOTALL)
    body = {"profile": "llama-32b-a800-80g", "num_gpus": 64, "lengths": [50000]}
    done = _run(["curl", "-s", f"{url}/v1/plans", "-H", "content-type: application/json", "-d", json.dumps(body)])
    real, shown = json.loads(done.stdout), json.loads(documented)
    assert shown.pop("detail").removesuffix("...") in real["detail"]
    assert {name: real[name] for name in shown} == shown


def test_the_readmes_command_gives_what_it_shows() -> None:
    readme = (ROOT / "README.md").read_text()
    (block,) = re.findall(r"```\n\$ (hydraulis plan .*?)```", readme, re.DOTALL)
    command, shown = re.split(r"(?<!\\)\n", block, maxsplit=1)
    done = _run(shlex.split(command.replace("\\\n", " ")))
    assert done.returncode == 0, done.stderr
    printed = iter([line.rstrip() for line in done.stdout.splitlines()])
    for line in shown.splitlines():
        if line.strip() and line != "...":
            assert line.rstrip() in printed, f"{line!r} is not printed, or not there"


@pytest.mark.parametrize(
    "page", sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]), ids=lambda page: page.name
)
def test_every_link_between_pages_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), target
