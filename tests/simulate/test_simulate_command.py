import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from planner_service.profiles import builtin_profiles

HYDRAULIS = str(Path(sys.executable).parent / "hydraulis")
SMALL = ("--profile", "llama-7b-a800-80g", "--gpus", "16", "--deadline-ms", "300")
GITHUB = (
    "--lengths",
    "github",
    "--max-length",
    "8192",
    "--over-long",
    "drop",
    "--iterations",
    "2",
    "--tokens",
    "30000",
)


def run(*arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [HYDRAULIS, *arguments], input=stdin, capture_output=True, text=True, timeout=100, check=False
    )


def simulated(*arguments: str, stdin: str | None = None) -> dict[str, Any]:
    done = run("simulate", *arguments, "--json", stdin=stdin)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 1
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def refused(*arguments: str, stdin: str | None = None) -> str:
    done = run(*arguments, stdin=stdin)
    assert done.returncode == 2, (done.returncode, done.stdout, done.stderr)
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


def test_a_stream_is_replayed_by_every_planner_asked_for() -> None:
    # Free strategies are the best where the clock does not cut the search, on a loaded machine too.
    unhurried = ("--deadline-ms", "5000")
    document = simulated(*SMALL, *GITHUB, *unhurried, "--strategy", "(8,1)x2", "--baselines", "plain,next-fit")
    planners = {entry["planner"]: entry for entry in document["planners"]}
    assert list(planners) == ["plain", "next-fit", "fixed", "homogeneous", "free"]
    assert planners["plain"]["simulated_speed_up"] == 1.0
    for entry in planners.values():
        assert (entry["num_planned"], entry["num_failed"]) == (2, 0)
        assert entry["makespan_ms"] == pytest.approx(sum(row["makespan_ms"] for row in entry["iterations"]))
    assert planners["fixed"]["iterations"][0]["strategy"] == "(8,1)x2"
    free = planners["free"]["iterations"]
    for index, row in enumerate(free):
        assert row["lower_bound_ms"] <= row["makespan_ms"]
        assert row["makespan_ms"] <= min(e["iterations"][index]["makespan_ms"] for e in planners.values()) * (1 + 1e-9)
    assert [row["num_tokens"] >= 30_000 for row in document["iterations"]] == [True, True]
    assert document["num_left_out"] > 0


def test_baselines_keep_the_homogeneous_strategy_with_the_least_total() -> None:
    document = simulated(*SMALL, *GITHUB)
    tried = [trial for trial in document["static"] if trial["method"] == "plain"]
    assert len(tried) >= 3
    assert [trial["total_makespan_ms"] for trial in tried] == sorted(trial["total_makespan_ms"] for trial in tried)
    kept = {row["strategy"] for row in document["planners"][0]["iterations"]}
    assert kept == {tried[0]["strategy"]}
    assert document["planners"][0]["makespan_ms"] == pytest.approx(tried[0]["total_makespan_ms"])


def test_a_given_static_strategy_is_kept() -> None:
    document = simulated(*SMALL, *GITHUB, "--static-strategy", "(8,2)x1")
    assert {row["strategy"] for row in document["planners"][0]["iterations"]} == {"(8,2)x1"}
    assert [trial["strategy"] for trial in document["static"]] == ["(8,2)x1"]


def test_windows_change_their_strategy_only_where_that_pays() -> None:
    arguments = (
        "--profile", "llama-32b-a800-80g", "--gpus", "64", "--lengths", "github", "--max-length", "8192",
        "--over-long", "drop", "--iterations", "5", "--tokens", "60000", "--window", "3", "--deadline-ms", "1500",
    )  # fmt: skip
    dear = {entry["planner"]: entry for entry in simulated(*arguments, "--switch-ms", "1000000")["planners"]}
    free = {entry["planner"]: entry for entry in simulated(*arguments, "--switch-ms", "0")["planners"]}
    assert [row["iteration"] for row in dear["window"]["iterations"]] == [0, 1, 2, 3, 4]
    assert dear["window"]["num_failed"] == free["window"]["num_failed"] == 0
    assert dear["free"]["num_switches"] > 0
    assert dear["window"]["num_switches"] == 0
    assert dear["window"]["speed_up"] > dear["free"]["speed_up"]
    assert free["window"]["makespan_ms"] <= dear["window"]["makespan_ms"]


def test_a_planner_that_fails_is_recorded_with_the_reason_and_the_others_go_on() -> None:
    document = simulated(
        *SMALL, *GITHUB, "--strategy", "(8,1)x2", "--baselines", "plain,published", "--baseline-deadline-ms", "1"
    )
    planners = {entry["planner"]: entry for entry in document["planners"]}
    assert planners["published"]["num_failed"] == 2
    for row in planners["published"]["iterations"]:
        assert row["failure"].startswith("deadline-exceeded")
        assert row["is_defect"] is False
    assert planners["free"]["num_planned"] == 2


def test_people_get_tables_and_a_report(tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    done = run("simulate", *SMALL, *GITHUB, "--strategy", "(8,1)x2", "--html", str(report))
    assert done.returncode == 0, done.stderr
    for word in ("planner", "speed-up", "plain keeps (", "free", "1F1B"):
        assert word in done.stdout
    assert max(len(line) for line in done.stdout.splitlines() if "report" not in line) <= 80
    assert report.read_text(encoding="utf-8").count("<svg") == 6


def test_iterations_of_a_histogram_are_drawn_anew_but_always_the_same(tmp_path: Path) -> None:
    path = tmp_path / "lengths.csv"
    path.write_text("length,count\n100,50\n900,20\n4000,3\n")
    arguments = (*SMALL, "--lengths", str(path), "--iterations", "2", "--tokens", "9000", "--seed", "3")
    first, second = simulated(*arguments), simulated(*arguments)
    assert first["iterations"] == second["iterations"]
    assert first["iterations"][0] != first["iterations"][1]


def test_gpus_of_several_types_are_simulated_together(tmp_path: Path) -> None:
    known = builtin_profiles()
    same_model = known["llama-7b-a100-40g"].model_copy(update={"model": known["llama-7b-a800-80g"].model})
    path = tmp_path / "a100.json"
    path.write_text(same_model.model_dump_json())
    document = simulated(
        "--profile", str(path), "--profile", "llama-7b-a800-80g", "--gpus", "A800 80GB:8,A100 40GB:8",
        "--deadline-ms", "300", *GITHUB,
    )  # fmt: skip
    assert document["num_gpus"] == 16
    assert document["profile"] == "llama-7b-a800-80g+llama-7b-a100-40g"
    planners = {entry["planner"]: entry for entry in document["planners"]}
    assert planners["plain"]["num_planned"] == planners["free"]["num_planned"] == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--lengths", "-", "--iterations", "3", "--tokens", "30"), ["holds 2 whole batches of 30", "3 iterations"]),
        (("--lengths", "-", "--iterations", "1", "--tokens", "30", "--max-length", "15"), ["sequence 2", "20", "drop"]),
        (("--lengths", "-", "--iterations", "1", "--tokens", "30", "--baselines", "fastest"), ["'fastest'", "plain"]),
        (("--lengths", "-", "--iterations", "1", "--tokens", "30", "--baselines", ","), ["none", "plain"]),
        (("--lengths", "-", "--iterations", "1", "--tokens", "30", "--strategy", "(3,1)x1"), ["(3,1)", "no layout"]),
        (("--lengths", "-", "--iterations", "1", "--tokens", "30", "--static-strategy", "8x2"), ["'8x2'"]),
        (("--lengths", "-", "--iterations", "1", "--tokens", "30", "--static-strategy", "(8,1)x3"), ["24 GPUs of 16"]),
        (("--lengths", "-", "--iterations", "1", "--tokens", "30", "--html", "/nowhere/a.html"), ["/nowhere/a.html"]),
        (("--lengths", "-", "--iterations", "1", "--tokens", "30", "--deadline-ms", "0"), ["--deadline-ms: ", "0"]),
        (
            ("--lengths", "-", "--iterations", "1", "--tokens", "30", "--max-tokens-per-micro-batch", "15"),
            ["sequence 2", "the limit is 15", "the limit of --max-tokens-per-micro-batch 15"],
        ),
        (("--lengths", "none.txt", "--iterations", "1", "--tokens", "30"), ["none.txt", "No such file"]),
    ],
)
def test_bad_input_ends_with_exit_code_2_and_one_clear_sentence(arguments: tuple[str, ...], words: list[str]) -> None:
    said = refused(
        "simulate", "--profile", "llama-7b-a800-80g", "--gpus", "16", *arguments, stdin="10\n20\n15\n15\n20\n5\n"
    )
    assert said.startswith("hydraulis simulate: ")
    for word in words:
        assert word in said, said


def test_the_quick_bench_measures_checks_and_writes_everything_down(tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    done = run(
        "bench", "planning", "--suite", "quick", "--only", "llama-7b-a800-80g", "--published-deadline-ms", "500",
        "--json", str(path),
    )  # fmt: skip
    document = json.loads(path.read_text(encoding="utf-8"))
    missed = [bar["name"] for bar in document["bars"] if bar["is_met"] is False]
    assert done.returncode == (1 if missed else 0), done.stderr
    assert all(name in done.stderr for name in missed)
    assert document["broken_invariants"] == []
    assert len(document["cases"]) == 2
    for case in document["cases"]:
        planners = {entry["planner"]: entry for entry in case["replay"]["planners"]}
        for name in ("plain", "fixed-homogeneous", "fixed-heterogeneous", "homogeneous", "free"):
            assert planners[name]["num_planned"] == 2
    assert all(entry["speed_up"] > 1 for entry in document["headline"])
    assert {bar["name"] for bar in document["bars"] if bar["is_met"] is None} >= {"free: worst planning, 1024 GPUs"}
    for word in ("What is asked for", "fixed strategy: mean gap", "plain loader"):
        assert word in done.stdout


def test_a_bench_of_an_unknown_profile_or_into_nowhere_is_refused() -> None:
    assert "'gpt-9'" in refused("bench", "planning", "--only", "gpt-9")
    assert "/nowhere/a.json" in refused("bench", "planning", "--json", "/nowhere/a.json")
