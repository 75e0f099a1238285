import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HYDRAULIS = str(Path(sys.executable).parent / "hydraulis")
SMALL = ("--profile", "llama-7b-a800-80g", "--gpus", "16", "--tokens", "30000", "--batches", "2")
GITHUB = ("--lengths", "github", "--max-length", "8192")


def run(*arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [HYDRAULIS, *arguments], input=stdin, capture_output=True, text=True, timeout=100, check=False
    )


def proposed(*arguments: str, stdin: str | None = None) -> dict[str, Any]:
    done = run("propose", *arguments, "--json", stdin=stdin)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 1
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def refused(*arguments: str, stdin: str | None = None) -> str:
    done = run("propose", *arguments, stdin=stdin)
    assert done.returncode == 2, (done.returncode, done.stdout, done.stderr)
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


def test_what_is_proposed_can_be_planned_with(tmp_path: Path) -> None:
    saved = tmp_path / "strategies.json"
    document = proposed(*SMALL, *GITHUB, "--most", "2", "--output", str(saved))
    assert json.loads(saved.read_text()) == document
    assert (document["profile"], document["num_gpus"], document["num_batches"]) == ("llama-7b-a800-80g", 16, 2)
    assert 1 <= len(document["strategies"]) <= 2
    assert sum(entry["share"] for entry in document["strategies"]) == pytest.approx(1)
    assert document["mean_lower_bound_ms"] <= document["all_mean_makespan_ms"] <= document["mean_makespan_ms"]
    assert document["mean_makespan_ms"] <= document["single_mean_makespan_ms"]
    assert document["num_left_out"] > 0
    assert document["longest"] <= 8192
    cluster = SMALL[:4]
    done = run("plan", *cluster, "--strategies", str(saved), "--lengths", "-", "--json", stdin="8192\n300\n500\n")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["strategy"] in {entry["strategy"] for entry in document["strategies"]}


def test_people_see_what_the_set_is_worth(tmp_path: Path) -> None:
    saved = tmp_path / "strategies.json"
    done = run("propose", *SMALL, *GITHUB, "--output", str(saved))
    assert done.returncode == 0, done.stderr
    for entry in json.loads(saved.read_text())["strategies"]:
        assert entry["strategy"] in done.stdout
    assert "over the bound" in done.stdout
    assert "the strategies above" in done.stdout
    assert "are too long" in done.stdout.replace("\n", " ")
    assert done.stderr == ""


def test_a_histogram_is_a_data_set_too(tmp_path: Path) -> None:
    histogram = tmp_path / "lengths.csv"
    histogram.write_text("length,count\n200,1000\n900,300\n6000,10\n")
    first = proposed(*SMALL, "--lengths", str(histogram))
    assert first == proposed(*SMALL, "--lengths", str(histogram))
    assert first["longest"] == 6000
    assert first["num_left_out"] == 0


def test_a_mixed_cluster_is_proposed_for(tmp_path: Path) -> None:
    profile = json.loads((Path(__file__).parents[2] / PROFILE).read_text())
    profile["name"], profile["device"]["name"] = "llama-7b-other", "Other 80GB"
    other = tmp_path / "other.json"
    other.write_text(json.dumps(profile))
    document = proposed(
        "--profile",
        "llama-7b-a800-80g",
        "--profile",
        str(other),
        "--gpus",
        "A800 80GB:8,Other 80GB:8",
        "--tokens",
        "20000",
        "--batches",
        "1",
        *GITHUB,
    )
    assert document["num_gpus"] == 16
    assert document["profile"] == "llama-7b-a800-80g+llama-7b-other"
    assert all("@" in entry["strategy"] for entry in document["strategies"])


PROFILE = "planner_service/profiles/llama-7b-a800-80g.json"


def test_few_process_groups_are_kept_to() -> None:
    document = proposed(*SMALL, *GITHUB, "--max-process-groups", "4")
    assert document["num_process_groups"] <= 4
    assert "process groups" in refused(*SMALL, *GITHUB, "--max-process-groups", "0", "--allow-layout", "(8,1)")


def test_only_homogeneous_strategies_are_proposed_where_that_is_asked_for() -> None:
    mixed, alike = (proposed(*SMALL, *GITHUB, *more) for more in ((), ("--homogeneous",)))
    assert {entry["strategy"].count(")x") for entry in alike["strategies"]} == {1}
    assert max(entry["strategy"].count(")x") for entry in mixed["strategies"]) > 1
    assert mixed["mean_makespan_ms"] <= alike["mean_makespan_ms"]


def test_a_longer_deadline_searches_harder() -> None:
    hasty, careful = (proposed(*SMALL, *GITHUB, "--deadline-ms", str(ms)) for ms in (1, 3000))
    assert careful["mean_lower_bound_ms"] >= hasty["mean_lower_bound_ms"]
    assert careful["mean_makespan_ms"] < hasty["mean_makespan_ms"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((*SMALL, "--lengths", "github"), "leave them out with --max-length"),
        ((*SMALL, "--lengths", "nothing.txt"), "nothing.txt cannot be read"),
        ((*SMALL, *GITHUB, "--output", "/no/such/folder/x.json"), "cannot be written"),
        ((*SMALL, *GITHUB, "--output", "."), "cannot be written"),
        ((*SMALL, *GITHUB, "--allow-layout", "(3,3)"), "--allow-layout names (3,3)"),
        ((*SMALL, *GITHUB, "--deadline-ms", "0"), "--deadline-ms: "),
        (
            (*SMALL, *GITHUB, "--max-tokens-per-micro-batch", "4000"),
            "holds more than 4000 (the limit of --max-tokens-per-micro-batch 4000)",
        ),
        (("--profile", "none", "--gpus", "16", "--tokens", "1000", *GITHUB), "there is no profile 'none'"),
        (("--profile", "llama-7b-a800-80g", "--gpus", "x", "--tokens", "1000", *GITHUB), "--gpus"),
        (("--profile", "llama-7b-a800-80g", "--gpus", "0", "--tokens", "1000", *GITHUB), "--gpus: "),
        ((*SMALL[:4], "--tokens", "999999999999", *GITHUB), "take fewer tokens"),
    ],
)
def test_bad_input_is_refused_in_one_sentence(arguments: tuple[str, ...], said: str) -> None:
    assert said in refused(*arguments)


def test_a_data_set_without_sequences_is_refused() -> None:
    assert "holds no sequence" in refused(*SMALL, "--lengths", "-", stdin="")
    assert "of at most 10 tokens" in refused(*SMALL, "--lengths", "-", "--max-length", "10", stdin="11\n")
