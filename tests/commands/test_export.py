"""Files for machines: what goes in comes out again, whole or not at all."""

import csv
import io
import json
import os
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from command_line import HYDRAULIS, Done, apart, hydraulis, on_terminal
from contents import HARMFUL, NUM_PLANNED, ODD, PROFILE, RUN, SPELLED_OUT, one_shot

from planner_client import PlannerClient
from planner_client.commands.export import utc, write_csv, write_json_array
from planner_client.contract import Job, Plan, Profile

pytestmark = pytest.mark.usefixtures("planner")

EXPORTS = [("jobs", "export"), ("iterations", "export", RUN), ("plans", "export"), ("profiles", "export")]


def exported(*arguments: str) -> Any:
    return hydraulis(*arguments, "--format", "json").json()


def table(*arguments: str) -> list[dict[str, str]]:
    done = hydraulis(*arguments, "--format", "csv")
    assert (done.code, done.err) == (0, "")
    return read_csv(done.out)


def read_csv(text: str) -> list[dict[str, str]]:
    heading, *lines = list(csv.reader(io.StringIO(text, newline=""), strict=True))
    assert len(set(heading)) == len(heading)
    assert all(len(line) == len(heading) for line in lines)
    assert text.count("\n") == len(lines) + 1
    return [dict(zip(heading, line, strict=True)) for line in lines]


def written(text: str) -> str:
    """What CSV makes of a value that is not text."""
    return "" if text is None else str(text).lower() if isinstance(text, bool) else str(text)


def test_exported_jobs_plans_and_profiles_are_those_of_the_service(planner: str) -> None:
    with PlannerClient(planner) as client:
        jobs = [client.job(job.name) for job in client.jobs()]
        plans = [client.plan_with_digest(plan.digest) for plan in client.plans()]
        profiles = [client.profile(profile.name) for profile in client.profiles()]
    assert [Job.model_validate(one, extra="forbid") for one in exported("jobs", "export")] == jobs
    assert [Plan.model_validate(one, extra="forbid") for one in exported("plans", "export")] == plans
    assert [Profile.model_validate(one) for one in exported("profiles", "export")] == profiles


def test_only_what_is_named_is_exported_in_the_order_named(planner: str) -> None:
    with PlannerClient(planner) as client:
        first, second, third = [plan.digest for plan in client.plans(limit=3)]
    assert [job["name"] for job in exported("jobs", "export", "run-1", "idle")] == ["run-1", "idle"]
    assert [one["name"] for one in exported("profiles", "export", "harmful", PROFILE)] == ["harmful", PROFILE]
    assert [plan["digest"] for plan in exported("plans", "export", third, first)] == [third, first]
    assert [plan["digest"] for plan in exported("plans", "export", "--limit", "2")] == [first, second]
    assert second not in [plan["digest"] for plan in exported("plans", "export", "--after", "2")]


def test_a_table_of_iterations_says_what_the_plans_say(planner: str) -> None:
    rows = table("iterations", "export", RUN, "--lengths")
    with PlannerClient(planner) as client:
        summaries = client.iterations(RUN)
        plans = [client.iteration_plan(RUN, number) for number in range(NUM_PLANNED)]
    assert [row["iteration"] for row in rows] == [str(one.iteration) for one in summaries]
    for row, summary in zip(rows, summaries, strict=True):
        for name in ("state", "num_reported", "digest", "strategy", "makespan_ms", "measured_ms", "gap", "code"):
            assert row[name] == written(getattr(summary, name)), name
        assert row["job"] == RUN
    for row, plan in zip(rows, plans, strict=False):
        assert isinstance(plan, Plan)
        for name in ("simulated_ms", "sync_ms", "lower_bound_ms", "all_strategies_lower_bound_ms", "bound_scope"):
            assert row[name] == written(getattr(plan, name)), name
        assert (row["num_sequences"], row["num_dropped"], row["num_distinct_lengths"]) == ("6", "0", "5")
        assert (row["shortest_tokens"], row["longest_tokens"]) == ("120", "3000")
        assert int(row["num_micro_batches"]) == sum(len(replica.micro_batches) for replica in plan.replicas)
        lengths = Counter({int(length): int(n) for length, n in (pair.split(":") for pair in row["lengths"].split())})
        assert lengths.total() == plan.num_sequences
        assert sum(length * count for length, count in lengths.items()) == plan.num_tokens
        assert lengths[400] == 2
    assert rows[NUM_PLANNED - 1]["measured_ms"] == "1234.5"
    assert [rows[-1][name] for name in ("num_sequences", "lengths", "finished_at")] == ["", "", ""]
    assert table("iterations", "export", ODD)[0]["code"] == "sources-missing"


def test_json_and_csv_of_iterations_hold_the_same() -> None:
    for options in ((), ("--lengths",), ("--no-plans",), ("--after", "1", "--limit", "2"), ("--newest-first",)):
        command = ("iterations", "export", RUN, *options)
        rows, documents = table(*command), exported(*command)
        assert [{name: written(value) for name, value in one.items()} for one in documents] == rows
    short, whole = table("iterations", "export", RUN, "--no-plans"), table("iterations", "export", RUN)
    assert [{name: row[name] for name in short[0]} for row in whole] == short
    assert "num_tokens" not in short[0]
    assert "lengths" not in whole[0]
    assert "num_tokens" in whole[0]


def test_tables_of_jobs_and_plans_say_what_the_service_says(planner: str) -> None:
    with PlannerClient(planner) as client:
        job = client.job(ODD)
        plans = {plan.number: client.plan_with_digest(plan.digest) for plan in client.plans()}
    (row,) = table("jobs", "export", ODD)
    assert row == {
        "job": ODD,
        "profiles": PROFILE,
        "num_gpus": "8",
        "num_sources": "2",
        "created_at": utc(job.created_at),
        "source_wait_ms": "1",
        "missing_sources": "refuse",
        "plan_wait_ms": "60000",
        "num_strategies": "1",
    }
    rows = table("plans", "export")
    assert [row["number"] for row in rows] == [str(number) for number in plans]
    for row, plan in zip(rows, plans.values(), strict=True):
        for name in ("digest", "profile", "iteration", "method", "cost", "alignment", "seed", "strategy", "gap"):
            assert row[name] == written(getattr(plan, name)), name
        assert row["cut_by_wall_clock"] == written(plan.cut_by_wall_clock)
        assert "," in row["strategy"]
    (alone,) = table("plans", "export", plans[1].digest, "--lengths")
    assert (alone["number"], alone["digest"]) == ("", plans[1].digest)
    assert alone["lengths"].endswith(" 3000:1")


def test_requests_that_led_to_the_same_plan_are_one_row(planner: str) -> None:
    with PlannerClient(planner) as client:
        digests = {one_shot(client, *lengths).digest for lengths in ((700, 60), (60, 700), (90, 90))}
        assert len(digests) == 2
        numbers = {plan.digest: plan.number for plan in reversed(client.plans())}
    rows = table("plans", "export")
    assert {row["digest"]: row["number"] for row in rows} == {one: str(number) for one, number in numbers.items()}
    assert len(rows) == len(numbers)
    assert [int(row["number"]) for row in rows] == sorted(numbers.values())


def test_a_table_of_profiles_has_a_row_for_each_layout(planner: str) -> None:
    with PlannerClient(planner) as client:
        profile = client.profile(PROFILE)
    rows = table("profiles", "export", PROFILE)
    for row, layout in zip(rows, profile.layouts, strict=True):
        assert (row["tp"], row["cp"], row["pp"]) == (str(layout.tp), str(layout.cp), str(layout.pp))
        assert float(row["a_ms_per_token2"]) == layout.a_ms_per_token2
        assert (row["device"], row["r2"]) == ("A100 40GB", "")


def test_names_that_a_spreadsheet_would_run_are_marked_as_text_and_stay_on_their_line() -> None:
    rows = table("profiles", "export", "harmful")
    assert {row["model"] for row in rows} == {f"'{SPELLED_OUT}"}
    assert {one["model"]["name"] for one in exported("profiles", "export", "harmful")} == {HARMFUL}


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", " =1+1", "\t=1", "\r=1", "\ufeff=1", "\u200b=1"])
def test_no_cell_of_text_begins_as_a_formula_does(text: str) -> None:
    out = io.StringIO()
    write_csv(out, ["name", "value"], [{"name": text, "value": -1.5}])
    ((name, value),) = list(csv.reader(io.StringIO(out.getvalue())))[1:]
    assert name[0] in "'\\"
    assert value == "-1.5"


def test_values_of_every_kind_come_back_from_a_table() -> None:
    out = io.StringIO()
    row = {"a": None, "b": True, "c": 2**60, "d": 0.1 + 0.2, "e": 'a,"b" c', "f": "", "g": 1e-300}
    write_csv(out, "abcdefgh", [row])
    ((*cells,),) = list(csv.reader(io.StringIO(out.getvalue()), strict=True))[1:]
    assert cells == ["", "true", str(2**60), "0.30000000000000004", 'a,"b" c', "", "1e-300", ""]


@pytest.mark.parametrize("documents", [[], [1], [{"a": "\u2028\n"}, None, [2]]])
def test_an_array_of_any_size_is_json_with_an_element_a_line(documents: list[Any]) -> None:
    out = io.StringIO()
    write_json_array(out, iter(documents))
    assert json.loads(out.getvalue()) == documents
    assert out.getvalue().count("\n") == (len(documents) + 2 if documents else 1)
    assert out.getvalue().isascii()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "1970-01-01T00:00:00.000Z"),
        (1764704471.5264, "2025-12-02T19:41:11.526Z"),
        (59.9996, "1970-01-01T00:01:00.000Z"),
    ],
)
def test_times_are_written_in_utc_to_the_millisecond(seconds: float, text: str) -> None:
    assert utc(seconds) == text
    assert utc(None) is None


def test_an_empty_service_gives_an_empty_array_or_headings_alone(
    empty_planner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HYDRAULIS_URL", empty_planner)
    for kind in ("jobs", "plans"):
        assert exported(kind, "export") == []
        done = hydraulis(kind, "export", "--format", "csv")
        assert (done.code, done.out.count("\n")) == (0, 1)


def test_a_job_without_iterations_gives_headings_alone() -> None:
    assert hydraulis("iterations", "export", "idle", "--format", "csv").out.count("\n") == 1
    assert exported("iterations", "export", "idle") == []


@pytest.mark.parametrize("command", EXPORTS)
@pytest.mark.parametrize("ending", ["json", "csv", "JSON"])
def test_a_files_ending_says_its_format(command: tuple[str, ...], ending: str, tmp_path: Path) -> None:
    out = tmp_path / f"out.{ending}"
    done = hydraulis(*command, "--output", str(out))
    text = out.read_text()
    num_items = len(exported(*command))
    assert (done.code, done.out, done.said) == (0, "", f"{num_items} exported to {out}")
    assert text == hydraulis(*command, "--format", ending.lower()).out
    assert list(tmp_path.iterdir()) == [out]


def test_a_format_named_overrules_the_ending_and_json_is_what_a_pipe_gets(tmp_path: Path) -> None:
    out = tmp_path / "out.txt"
    assert hydraulis("jobs", "export", "-o", str(out), "--format", "csv").code == 0
    assert read_csv(out.read_text())
    assert hydraulis("jobs", "export").json() == exported("jobs", "export")


def refused_file(path: Path | str, *options: str) -> str:
    done = hydraulis("jobs", "export", "--output", str(path), *options)
    assert (done.code, done.out) == (2, "")
    assert done.err.count("\n") == 1
    return done.said


def test_files_that_cannot_be_written_are_refused_with_what_to_do(tmp_path: Path) -> None:
    assert "say --format json or --format csv" in refused_file(tmp_path / "out.txt")
    assert "say --format json or --format csv" in refused_file(tmp_path / "out")
    (tmp_path / "dir.csv").mkdir()
    assert "is a directory; name a file in it" in refused_file(tmp_path / "dir.csv")
    assert "is a directory; name a file in it" in refused_file(tmp_path / "dir.csv", "--force")
    assert "which is no directory; create it" in refused_file(tmp_path / "none" / "out.csv")
    os.mkfifo(tmp_path / "pipe.csv")
    assert "is no ordinary file" in refused_file(tmp_path / "pipe.csv", "--force")
    assert "is no ordinary file" in refused_file(os.devnull, "--force", "--format", "csv")
    assert refused_file(tmp_path / ("x" * 300 + ".csv"))
    done = hydraulis("jobs", "export", "--format", "xml")
    assert (done.code, "'xml' is not one of" in done.said) == (2, True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dir.csv", "pipe.csv"]


def test_a_file_that_is_there_is_replaced_only_with_force(tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    out.write_text("mine")
    assert "is there already; say --force" in refused_file(out)
    assert out.read_text() == "mine"
    (tmp_path / "link.csv").symlink_to(out)
    assert hydraulis("jobs", "export", "--output", str(tmp_path / "link.csv"), "--force").code == 0
    assert read_csv(out.read_text())
    assert (tmp_path / "link.csv").is_symlink()
    assert len(list(tmp_path.iterdir())) == 2


def test_a_file_that_appears_meanwhile_is_not_written_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out.json"
    real = PlannerClient.job

    def interfering(*arguments: Any, **options: Any) -> Job:
        out.write_text("somebody else's")
        return real(*arguments, **options)

    monkeypatch.setattr(PlannerClient, "job", interfering)
    assert "is there already" in refused_file(out)
    assert out.read_text() == "somebody else's"
    assert list(tmp_path.iterdir()) == [out]


@pytest.mark.parametrize("is_there", [False, True])
def test_an_export_that_fails_in_the_middle_leaves_what_was_there(
    is_there: bool,  # noqa: FBT001 - a parameter of the test
    tmp_path: Path,
) -> None:
    out = tmp_path / "out.csv"
    if is_there:
        out.write_text("mine")
    done = hydraulis("jobs", "export", RUN, "nobody", "--output", str(out), "--force")
    assert done.code == 2
    assert "there is no job 'nobody'" in done.said
    assert [path.read_text() for path in tmp_path.iterdir()] == (["mine"] if is_there else [])


def test_ctrl_c_leaves_no_half_a_file(tmp_path: Path) -> None:
    from misbehaving_server import hang, misbehaving  # noqa: PLC0415 - found by conftest's path

    with misbehaving(hang) as server:
        process = subprocess.Popen(
            [HYDRAULIS, "jobs", "export", "a", "--url", server.url, "--output", str(tmp_path / "out.csv")],
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            ends_at = time.monotonic() + 30
            while not server.num_requests and time.monotonic() < ends_at:
                time.sleep(0.02)
            assert list(tmp_path.iterdir())
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=30)
        finally:
            process.kill()
            process.wait(30)
    assert (process.returncode, said) == (130, "hydraulis jobs export: stopped\n")
    assert list(tmp_path.iterdir()) == []


def test_a_histogram_is_refused_where_the_plans_are_left_out() -> None:
    done = hydraulis("iterations", "export", RUN, "--no-plans", "--lengths")
    assert (done.code, done.out) == (2, "")
    assert "--lengths are in the plans, which --no-plans leaves out" in done.said


def full_disk(*arguments: str) -> Done:
    with Path("/dev/full").open("w") as full:
        return apart(*arguments, stdout=full, env={"PYTHONUNBUFFERED": ""})


@pytest.mark.parametrize("arguments", [("jobs", "list"), ("jobs", "export"), ("plans", "export", "--format", "csv")])
def test_a_full_disk_is_said_in_one_sentence(arguments: tuple[str, ...]) -> None:
    done = full_disk(*arguments)
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "No space left on device" in done.err


def test_a_reader_who_has_seen_enough_ends_the_command_quietly() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as pipe:
        done = apart("profiles", "export", stdout=pipe)
    assert (done.code, done.err) == (1, "")


def test_progress_is_shown_on_a_terminal_and_the_file_stays_clean(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    done = on_terminal("iterations", "export", RUN, "--output", str(out))
    assert done.code == 0
    assert "iterations read" in done.out
    assert f"{NUM_PLANNED + 1} exported to {out}" in done.out
    assert len(json.loads(out.read_text())) == NUM_PLANNED + 1
