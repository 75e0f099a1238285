import json
import math
import os
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
import typer
from forked import hydraulis_command
from outcome_factory import make_changing, make_changing_record, make_outcome, make_record
from typer.testing import CliRunner

from planner_client.contract.strategy import parse_strategy
from worker_agent.commands.demo import demo
from worker_agent.demo import run
from worker_agent.demo.corpus import draw_batches, read_corpus
from worker_agent.demo.settings import STRATEGIES

HYDRAULIS = hydraulis_command()
SHORT = ["--sequences", "6", "--max-length", "1024", "--profile-packings", "8", "--profile-repeats", "1"]
pytestmark = pytest.mark.timeout(400)
"""A run starts seven processes that import torch, which takes a busy machine a while."""


def run_demo(directory: Path, *options: str, timeout: float = 300) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*HYDRAULIS, "demo", *options], cwd=directory, capture_output=True, text=True, timeout=timeout, check=False
    )


@pytest.fixture(scope="module")
def short_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[subprocess.CompletedProcess[str], Path]:
    directory = tmp_path_factory.mktemp("demo")
    report = directory / "own-name.html"
    return run_demo(directory, *SHORT, "--iterations", "2", "--seed", "5", "--json", "--report", str(report)), report


@pytest.fixture(scope="module")
def document(short_run: tuple[subprocess.CompletedProcess[str], Path]) -> dict[str, Any]:
    finished, _ = short_run
    assert finished.returncode == 0, finished.stderr
    parsed: dict[str, Any] = json.loads(finished.stdout)
    return parsed


def test_a_short_run_ends_well_and_writes_its_report(
    short_run: tuple[subprocess.CompletedProcess[str], Path], document: dict[str, Any]
) -> None:
    finished, report = short_run
    assert document["settings"]["report"] == str(report)
    assert "<svg" in report.read_text(encoding="utf-8")
    assert str(report) in finished.stderr
    assert sorted(path.name for path in report.parent.iterdir()) == ["own-name.html"]


def test_both_modes_ran_every_batch_whole(document: dict[str, Any]) -> None:
    corpus = read_corpus(1024)
    batches = draw_batches(len(corpus.sequences), num_batches=2, num_sequences=6, seed=5)
    ran = {(record["mode"], record["iteration"]): record for record in document["iterations"]}
    assert set(ran) == {(mode, iteration) for mode in ("plain", "planned") for iteration in (0, 1)}
    for (_, iteration), record in ran.items():
        assert record["num_sequences"] == 6
        assert record["num_tokens"] == sum(corpus.lengths[index] for index in batches[iteration])


def test_the_losses_of_different_plans_agree(document: dict[str, Any]) -> None:
    assert document["losses_agree"] is True
    by_mode = {
        mode: [record for record in document["iterations"] if record["mode"] == mode] for mode in ("plain", "planned")
    }
    pairs = list(
        zip(
            sorted(by_mode["plain"], key=lambda record: record["iteration"]),
            sorted(by_mode["planned"], key=lambda record: record["iteration"]),
            strict=True,
        )
    )
    assert any(plain["digest"] != planned["digest"] for plain, planned in pairs)
    for plain, planned in pairs:
        assert planned["loss"] == pytest.approx(plain["loss"], rel=1e-3)
        assert 0 < plain["loss"] < 7


def test_the_planned_makespan_is_never_predicted_longer_than_the_plain_one(document: dict[str, Any]) -> None:
    predicted = {
        (record["mode"], record["iteration"]): max(record["predicted_ms"]) for record in document["iterations"]
    }
    for iteration in (0, 1):
        assert predicted["planned", iteration] <= predicted["plain", iteration] * (1 + 1e-9)


def test_times_and_the_fit_are_measured(document: dict[str, Any]) -> None:
    for record in document["iterations"]:
        assert record["wall_ms"] >= max(record["measured_ms"]) > 0
        assert max(record["cpu_ms"]) > 0
        assert record["fetch_ms"] > 0
        assert record["gap"] is None or record["gap"] >= 0
    profile = document["profile"]
    assert 8 < profile["num_samples"] + profile["num_held_out"] <= 8 * 2  # each on both ranks; held out, no outliers
    assert profile["max_tokens"] == 1024
    assert profile["b_ms_per_token"] + profile["a_ms_per_token2"] > 0
    hidden = document["modes"]["planned"]["hidden_share"]
    assert 0 <= hidden <= 1


def test_the_strategy_changes_every_iteration_and_every_rank_has_its_place(document: dict[str, Any]) -> None:
    iterations = document["changing_strategies"]["iterations"]
    assert [record["strategy"] for record in iterations] == list(STRATEGIES)
    for record in iterations:
        layouts = [
            (group.tp, group.pp) for group in parse_strategy(record["strategy"]) for _ in range(group.num_replicas)
        ]
        assert sorted((replica["tp"], replica["pp"]) for replica in record["replicas"]) == sorted(layouts)
        assert sorted(rank for replica in record["replicas"] for rank in replica["ranks"]) == [0, 1, 2, 3]


def test_changing_strategies_train_on_whole_batches_of_the_same_text(document: dict[str, Any]) -> None:
    lengths = read_corpus(1024).lengths
    batches = draw_batches(len(lengths), num_batches=len(STRATEGIES), num_sequences=6, seed=5)
    for record, batch in zip(document["changing_strategies"]["iterations"], batches, strict=True):
        assert record["num_sequences"] == 6 == sum(replica["num_sequences"] for replica in record["replicas"])
        assert sum(replica["num_tokens"] for replica in record["replicas"]) == record["num_tokens"]
        assert record["num_tokens"] == sum(lengths[index] for index in batch)


def test_the_loss_of_changing_strategies_is_that_of_one_process_alone(document: dict[str, Any]) -> None:
    changing = document["changing_strategies"]
    assert changing["losses_agree"] is True
    for record in changing["iterations"]:
        assert record["loss"] == pytest.approx(record["reference_loss"], rel=1e-5)
    first, last = changing["iterations"][0], changing["iterations"][-1]
    assert first["reference_loss"] == pytest.approx(math.log(256), rel=0.02)
    assert last["reference_loss"] < first["reference_loss"] - 0.1
    assert "estimated, not measured" in changing["profile_source"]


def test_propagation_is_a_measured_part_of_each_iteration(document: dict[str, Any]) -> None:
    for record in document["changing_strategies"]["iterations"]:
        assert 0 < record["propagation_share"] < 1
        assert len(record["propagation_ms"]) == 4
        assert all(0 < propagated < record["wall_ms"] for propagated in record["propagation_ms"])


def test_the_run_is_told_line_by_line(short_run: tuple[subprocess.CompletedProcess[str], Path]) -> None:
    finished, _ = short_run
    for strategy in STRATEGIES:
        assert re.search(rf"^ +\d  {re.escape(strategy)} ", finished.stderr, re.MULTILINE)
    assert "6 strategies in 6 iterations on 4 ranks: losses agree with one process alone" in finished.stderr


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"changing": make_changing(make_changing_record(0, loss=5.001))},
            "the loss of changing strategies differs by up to 2.0e-04 from that of one process alone",
        ),
        (
            {"records": (make_record("plain", 0, loss=2.0), make_record("planned", 0, loss=2.1))},
            "the two modes' losses differ by up to 4.8e-02",
        ),
    ],
)
def test_losses_that_disagree_end_the_demo_with_the_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], sentence: str
) -> None:
    monkeypatch.setattr(run, "run_demo", lambda *_: make_outcome(**changes))
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    app = typer.Typer()
    app.command()(demo)
    finished = CliRunner().invoke(app, ["--report", str(tmp_path / "report.html")])
    assert finished.exit_code == 1
    assert sentence in finished.stderr


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--iterations", "0"], "--iterations is 0; give from 1 to 100000"),
        (["--profile-packings", "1001"], "--profile-packings is 1001; give from 8 to 1000"),
        (["--profile-repeats", "81"], "--profile-repeats is 81; give from 1 to 80"),
        (["--sequences", "1"], "--sequences is 1; give from 2 to 100000"),
        (["--seed", "-1"], "--seed is -1; give from 0 to 2147483647"),
        (["--max-length", "3"], "--max-length is 3; give from 256 to 1048576"),
        (["--report", "nowhere/report.html"], "lies in nowhere, which is no directory"),
        (["--report", "."], "is a directory; name a file in it"),
    ],
)
def test_bad_input_is_refused_in_one_sentence_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], sentence: str
) -> None:
    monkeypatch.chdir(tmp_path)
    app = typer.Typer()
    app.command()(demo)
    finished = CliRunner().invoke(app, options)
    assert finished.exit_code == 2
    assert finished.stdout == ""
    assert finished.stderr.startswith("hydraulis demo: ")
    assert finished.stderr.count("\n") == 1
    assert sentence in finished.stderr
    assert list(tmp_path.iterdir()) == []


def test_more_sequences_than_the_corpus_has_are_refused(tmp_path: Path) -> None:
    finished = run_demo(tmp_path, "--sequences", "99999", "--max-length", "256", timeout=60)
    assert finished.returncode == 2
    assert re.fullmatch(
        r"hydraulis demo: --sequences is 99999 but the corpus has \d+ sequences; ask for fewer or raise --max-length\n",
        finished.stderr,
    )


@pytest.mark.parametrize(
    ("sent", "to_group", "code"), [(signal.SIGINT, True, 130), (signal.SIGTERM, False, 128 + signal.SIGTERM)]
)
def test_a_stopped_run_stops_its_planner(
    tmp_path: Path,
    sent: signal.Signals,
    to_group: bool,  # noqa: FBT001 - Ctrl-C reaches the whole group, SIGTERM one process
    code: int,
) -> None:
    with subprocess.Popen(
        [*HYDRAULIS, "demo", *SHORT], cwd=tmp_path, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        url = next(found[1] for line in process.stdout if (found := re.search(r"listens on (http://\S+)", line)))
        assert httpx.get(f"{url}/healthz", timeout=5).status_code == 200
        time.sleep(1.0)
        if to_group:
            os.killpg(process.pid, sent)
        else:
            process.send_signal(sent)
        assert process.wait(timeout=60) == code
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/healthz", timeout=5)
