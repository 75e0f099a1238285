import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
import typer
from click.testing import Result
from forked import hydraulis_command
from typer.testing import CliRunner

from planner_client.client import PlannerClient
from planner_client.contract import Profile, ProfileMeasurement
from worker_agent.commands import profile as profile_command
from worker_agent.demo.service_process import running_service

HYDRAULIS = hydraulis_command()
SMALL = [
    "--max-tokens", "256", "--packings", "8", "--repeats", "1", "--max-repeats", "1", "--no-collectives",
    "--model", "layers=1,hidden=16,heads=2,vocab=16",
]  # fmt: skip


def invoke(*options: str) -> Result:
    app = typer.Typer()
    app.command()(profile_command.profile)
    return CliRunner().invoke(app, list(options))


def test_the_measurement_goes_to_stdout_alone(tmp_path: Path) -> None:
    finished = subprocess.run(
        [*HYDRAULIS, "profile", *SMALL, "--name", "bench-box", "--processes", "1"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    measurement = ProfileMeasurement.model_validate(json.loads(finished.stdout))
    assert measurement.name == "bench-box"
    assert len({tuple(sample.lengths) for sample in measurement.layouts[0].samples}) == 8
    assert "foreign load" in finished.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_planner_fits_and_keeps_what_was_measured(tmp_path: Path) -> None:
    output, token_file = tmp_path / "measured.json", tmp_path / "token"
    token_file.write_text("shown-to-a-planner-that-asks-for-none\n")
    with running_service(tmp_path / "store.sqlite3") as url:
        finished = invoke(
            *SMALL, "--layouts", "1x1,2x1", "--limit-by-memory", "--output", str(output),
            "--planner", url, "--token-file", str(token_file), "--json",
        )  # fmt: skip
        assert finished.exit_code == 0, finished.stderr
        fitted = Profile.model_validate_json(finished.stdout)
        with PlannerClient(url) as client:
            assert client.profile("this-machine") == fitted
    measurement = ProfileMeasurement.model_validate_json(output.read_text(encoding="utf-8"))
    assert measurement.device.gpus_per_node == 2
    for cost, layout in zip(fitted.layouts, measurement.layouts, strict=True):
        assert (cost.tp, cost.pp) == (layout.tp, layout.pp)
        assert cost.fit is not None
        assert cost.fit.num_samples == len(layout.samples)
        assert f"{cost.tp}x{cost.pp}: R^2" in finished.stderr
        assert layout.max_tokens is None
        assert cost.max_tokens is not None
    assert not (tmp_path / "measured.json.journal").exists()


def test_one_that_was_interrupted_goes_on_where_it_was(tmp_path: Path) -> None:
    output, journal = tmp_path / "measured.json", tmp_path / "measured.json.journal"
    options = [*SMALL, "--processes", "1", "--repeats", "10000", "--max-repeats", "10000", "--output", str(output)]
    begun = subprocess.Popen([*HYDRAULIS, "profile", *options], stderr=subprocess.PIPE, text=True)
    try:
        ends_at = time.monotonic() + 60
        while not (journal.exists() and journal.read_bytes().count(b"\n") > 4) and time.monotonic() < ends_at:
            time.sleep(0.05)
        os.kill(begun.pid, signal.SIGINT)
        _, told = begun.communicate(timeout=60)
    finally:
        begun.kill()
    assert begun.returncode == 130, told
    assert f"stopped; what was finished is kept in {journal}" in " ".join(told.split())
    assert not output.exists()
    other = invoke(*SMALL, "--processes", "1", "--output", str(output))
    assert other.exit_code == 2
    assert "num_repeats was 10000 and is 1" in other.stderr


def test_a_planner_that_is_away_is_noticed_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profile_command, "_READY_TIMEOUT_S", 1.0)
    output = tmp_path / "measured.json"
    finished = invoke(*SMALL, "--output", str(output), "--planner-url", "http://127.0.0.1:9")
    assert finished.exit_code == 1
    assert finished.stdout == ""
    assert finished.stderr.startswith("hydraulis profile: planner http://127.0.0.1:9: ")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--max-tokens", "0"], "max_tokens is 0; give at least 32"),
        (["--processes", "100000"], "num_ranks is 100000; give at most 1024"),
        (["--repeats", "20000"], "num_packings 28 times max_repeats 20000 is 560000 runs of a layout"),
        (["--repeats", "0"], "num_repeats is 0; give at least 1"),
        (["--model", "layers=2,hidden=64,heads=3,vocab=9"], "does not divide into 3 heads"),
        (["--name", "no spaces"], "name is 'no spaces'; give up to 128 letters"),
        (["--planner-url", "nonsense"], "nonsense"),
        (["--output", "nowhere/measured.json"], "lies in nowhere, which is no directory"),
        (["--output", "/proc"], "--output /proc is a directory; name a file in it"),
        (["--output", "/proc/measured.json"], "--output /proc/measured.json cannot be written"),
        (["--journal", "nowhere/kept"], "--journal nowhere/kept lies in nowhere"),
        (["--output", "one", "--journal", "one"], "--output and --journal are both one"),
        (["--layouts", "1x1,2"], "'2' is no layout"),
        (["--layouts", "2x2", "--processes", "2"], "layout 2x2 needs 4 ranks but 2 measure"),
        (["--token-file", "token"], "--token-file is given but no --planner"),
        (["--token-file", "missing", "--planner", "http://127.0.0.1:9"], "missing"),
    ],
)
def test_bad_input_is_refused_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], sentence: str
) -> None:
    monkeypatch.chdir(tmp_path)
    finished = invoke(*options)
    assert finished.exit_code == 2
    assert finished.stdout == ""
    assert finished.stderr.startswith("hydraulis profile: ")
    assert finished.stderr.count("\n") == 1
    assert sentence in finished.stderr
    assert list(tmp_path.iterdir()) == []
