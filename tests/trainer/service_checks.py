"""What two real ranks meet of planners that refuse or are away; importable by them."""

from pathlib import Path
from typing import Any

from trainer_checks import stop_of
from training_runs import PROFILE, trainer

from planner_client.contract import PlanOptions
from worker_agent.trainer.settings import CheckpointSettings

DEADLINE_S = 3.0
WRONG_TOKEN = "hyd_" + 43 * "A"


def stopped(url: str, folder: Path, **changes: Any) -> dict[str, Any]:
    """Train as far as it goes."""
    given: dict[str, Any] = {
        "planner_url": url,
        "profile": PROFILE,
        "plan_timeout_s": DEADLINE_S,
        "checkpoints": CheckpointSettings(folder),
    }

    def run() -> None:
        with trainer(**{**given, **changes}) as built:
            built.train()

    return stop_of(run)


def check_refusals(rank: int, guarded_url: str, open_url: str, token: str, folder: Path) -> dict[str, dict[str, Any]]:
    """Meet each of them in turn; the first run makes the job that a later one has a conflict with."""
    del rank
    away = "http://127.0.0.1:9"
    return {
        "well": stopped(guarded_url, folder / "well", token=token, job="taken", num_iterations=2),
        "again": stopped(guarded_url, folder / "well", token=token, job="taken", num_iterations=3),
        "conflict": stopped(
            guarded_url, folder / "conflict", token=token, job="taken", plan_options=PlanOptions(seed=7)
        ),
        "no token": stopped(guarded_url, folder / "none"),
        "wrong token": stopped(guarded_url, folder / "wrong", token=WRONG_TOKEN, job="other"),
        "job not allowed": stopped(guarded_url, folder / "job", token=token, job="not-mine"),
        "unknown profile": stopped(open_url, folder / "profile", profile="nobody-has-it"),
        "unknown profile of a job": stopped(open_url, folder / "profile-job", profile="nobody-has-it", job="a"),
        "away": stopped(away, folder / "away", profile="nobody-has-it", job="b"),
        "away with a basis": stopped(away, folder / "basis", num_iterations=2),
    }
