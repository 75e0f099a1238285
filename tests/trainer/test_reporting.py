import io
import json
import os
import signal
import threading
from pathlib import Path

import pytest
from plan_factory import make_plan
from rich.console import Console

from worker_agent.trainer.metrics import IterationMetrics, PlanOrigin
from worker_agent.trainer.reporting import Reporter
from worker_agent.trainer.settings import ReportSettings
from worker_agent.trainer.stop_signal import stop_wish


def metrics(iteration: int = 0, origin: PlanOrigin = "service") -> IterationMetrics:
    return IterationMetrics.of_plan(
        make_plan([[[("rank-0", 5, 1), ("rank-0", 3, 1)]]]),
        iteration=iteration,
        epoch=0,
        loss=2.5,
        learning_rate=1e-3,
        grad_norm=0.5,
        wall_ms=200.0,
        compute_ms=[90.0, 150.0],
        plan_origin=origin,
        fetch_ms=10.0,
        waited_ms=1.0,
    )


def test_metrics_say_how_well_the_ranks_were_balanced() -> None:
    plan = make_plan([[[("rank-0", 5, 1), ("rank-0", 3, 1)]]])
    told = metrics()
    assert (told.compute_ms, told.balance) == (150.0, 1.25)
    assert told.tokens_per_s == 5 * plan.num_tokens
    assert (told.plan_digest, told.strategy, told.num_sequences) == (plan.digest, plan.strategy, plan.num_sequences)


def test_every_iteration_is_one_json_line_behind_those_of_an_earlier_run(tmp_path: Path) -> None:
    path = tmp_path / "new" / "metrics.jsonl"
    for first in (0, 2):
        reporter = Reporter(ReportSettings(path, progress=False), reports=True, num_iterations=4)
        reporter.open()
        reporter.report(metrics(first))
        reporter.report(metrics(first + 1))
        # The last line is there at once, not when the run ends.
        assert json.loads(path.read_text().splitlines()[-1])["iteration"] == first + 1
        reporter.close()
    assert [json.loads(line)["iteration"] for line in path.read_text().splitlines()] == [0, 1, 2, 3]


def test_people_read_one_line_an_iteration() -> None:
    out = io.StringIO()
    reporter = Reporter(ReportSettings(), reports=True, num_iterations=4, console=Console(file=out))
    reporter.open()
    reporter.report(metrics(1))
    reporter.close()
    assert out.getvalue().startswith("iteration 2/4  loss 2.5000  ")
    assert "made without" not in out.getvalue()
    assert "made without the planner, waited 1 ms" in metrics(1, "fallback").as_text(4)
    assert "gradient norm 0.5" in out.getvalue()
    assert len(out.getvalue().splitlines()) == 1


def test_a_script_hears_of_each_iteration() -> None:
    heard: list[IterationMetrics] = []
    reporter = Reporter(
        ReportSettings(None, progress=False, on_iteration=heard.append), reports=True, num_iterations=None
    )
    reporter.open()
    reporter.report(metrics(3))
    assert heard == [metrics(3)]


def test_other_ranks_report_nothing(tmp_path: Path) -> None:
    heard: list[IterationMetrics] = []
    settings = ReportSettings(tmp_path / "metrics.jsonl", on_iteration=heard.append)
    reporter = Reporter(settings, reports=False, num_iterations=4, console=Console(file=io.StringIO()))
    reporter.open()
    reporter.report(metrics())
    assert not heard
    assert not (tmp_path / "metrics.jsonl").exists()


def test_sigterm_is_a_wish_while_a_run_goes_on_and_ends_the_process_after_it() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with stop_wish() as wish:
        assert not wish.is_there
        os.kill(os.getpid(), signal.SIGTERM)
        assert wish.is_there
    assert signal.getsignal(signal.SIGTERM) is before


def test_ctrl_c_is_a_wish_once_and_interrupts_the_second_time() -> None:
    before = signal.getsignal(signal.SIGINT)
    with stop_wish() as wish:
        os.kill(os.getpid(), signal.SIGINT)
        assert wish.is_there
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_outside_the_main_thread_signals_stay_as_they_are() -> None:
    before = signal.getsignal(signal.SIGTERM)
    seen = []

    def run() -> None:
        with stop_wish() as wish:
            seen.append((wish.is_there, signal.getsignal(signal.SIGTERM) is before))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(10)
    assert seen == [(False, True)]


def test_metrics_that_are_no_numbers_are_not_written() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        IterationMetrics(**{**vars(metrics()), "loss": float("nan")}).as_json_line()
