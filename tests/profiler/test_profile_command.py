import json
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from click.testing import Result
from typer.testing import CliRunner

from planner_client.client import PlannerClient
from planner_client.contract import Profile, ProfileMeasurement
from worker_agent.commands import profile as profile_command
from worker_agent.demo.service_process import running_service

HYDRAULIS = [sys.executable, "-c", "from planner_client.main import main; main()"]
SMALL = ["--max-tokens", "256", "--packings", "8", "--repeats", "1", "--hidden-size", "16", "--layers", "1"]


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
    assert len(measurement.layouts[0].samples) == 8
    assert list(tmp_path.iterdir()) == []


def test_a_planner_fits_and_keeps_what_was_measured(tmp_path: Path) -> None:
    output = tmp_path / "measured.json"
    with running_service(tmp_path / "store.sqlite3") as url:
        options = (*SMALL, "--processes", "1", "--output", str(output), "--planner-url", url, "--json")
        finished = invoke(*options)
        assert finished.exit_code == 0, finished.stderr
        fitted = Profile.model_validate_json(finished.stdout)
        with PlannerClient(url) as client:
            assert client.profile("this-machine") == fitted
    measurement = ProfileMeasurement.model_validate_json(output.read_text(encoding="utf-8"))
    assert measurement.device.gpus_per_node == 1
    fit = fitted.layouts[0].fit
    assert fit is not None
    assert fit.num_samples == len(measurement.layouts[0].samples)


def test_a_planner_that_is_away_is_noticed_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profile_command, "_READY_TIMEOUT_S", 1.0)
    output = tmp_path / "measured.json"
    finished = invoke(*SMALL, "--output", str(output), "--planner-url", "http://127.0.0.1:9")
    assert finished.exit_code == 1
    assert finished.stdout == ""
    assert finished.stderr.startswith("hydraulis profile: planner http://127.0.0.1:9: ")
    assert not output.exists()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--max-tokens", "0"], "max_tokens is 0; give at least 32"),
        (["--repeats", "0"], "num_repeats is 0; give at least 1"),
        (["--heads", "3"], "does not divide into 3 heads"),
        (["--name", "no spaces"], "name is 'no spaces'; give up to 128 letters"),
        (["--planner-url", "nonsense"], "nonsense"),
        (["--output", "nowhere/measured.json"], "lies in nowhere, which is no directory"),
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
