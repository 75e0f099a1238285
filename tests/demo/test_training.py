from pathlib import Path

import pytest

from worker_agent.demo.corpus import Corpus
from worker_agent.demo.settings import DemoSettings
from worker_agent.demo.training import TrainingJob, plan_request, train_rank
from worker_agent.local_ranks import RanksFailed, run_on_local_ranks

CORPUS = Corpus(
    sequences=(b"abc", b"defgh", b"ij", b"k" * 300),
    num_files=4,
    num_empty=0,
    num_over_long=0,
    num_over_long_tokens=0,
    max_length=512,
)


def make_job(directory: Path, planner_url: str = "http://127.0.0.1:9") -> TrainingJob:
    settings = DemoSettings(report=directory / "report.html", iterations=1, num_sequences=4, deadline_ms=50)
    return TrainingJob(settings, CORPUS, planner_url, "demo")


@pytest.mark.parametrize(("mode", "method"), [("plain", "plain"), ("planned", "hydraulis")])
def test_a_batch_is_sent_as_lengths_by_the_source_that_holds_them(tmp_path: Path, mode: str, method: str) -> None:
    request = plan_request(make_job(tmp_path), [3, 0, 2, 1], 7, mode)  # type: ignore[arg-type]
    assert request.lengths == {"rank-0": [300, 2], "rank-1": [3, 5]}
    assert request.options.method == method
    assert request.iteration == 7
    assert [(group.tp, group.pp, group.num_replicas) for (group,) in request.strategies] == [(1, 1, 2)]


def test_a_planner_that_is_away_fails_every_rank_with_the_same_fault(tmp_path: Path) -> None:
    with pytest.raises(RanksFailed, match="PlanningFailed: no plan for this iteration") as caught:
        run_on_local_ranks(train_rank, make_job(tmp_path), num_ranks=2, timeout_s=90)
    faults = caught.value.faults
    assert sorted(faults) == [0, 1]
    assert faults[0] == faults[1]
