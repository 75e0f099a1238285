"""Lists and single things of a real planner: tables for people, JSON for machines."""

from typing import Any

import pytest
from command_line import Done, apart, hydraulis, on_terminal, without_colours
from contents import HARMFUL, NUM_PLANNED, ODD, PROFILE, RUN, SPELLED_OUT

from planner_client import PlannerClient
from planner_client.contract import (
    IterationStatus,
    IterationSummary,
    IterationTimings,
    Job,
    JobSummary,
    Plan,
    PlanSummary,
    Profile,
    ProfileSummary,
)

LISTS = {
    "jobs": ("jobs", "list"),
    "iterations": ("iterations", "list", RUN),
    "plans": ("plans", "list"),
    "profiles": ("profiles", "list"),
}
ITERATIONS = [*range(NUM_PLANNED), 7]

pytestmark = pytest.mark.usefixtures("planner")


def rows(done: Done) -> list[list[str]]:
    """The cells of a table that was written to a pipe; its columns stand two spaces apart."""
    assert (done.code, done.err) == (0, "")
    return [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in done.out.splitlines() if line]


def facts(done: Done) -> dict[str, str]:
    return {row[0]: " ".join(row[1:]) for row in rows(done) if len(row) > 1}


def digest_of(iteration: int, planner: str) -> str:
    with PlannerClient(planner) as client:
        digest = client.iteration(RUN, iteration).digest
    assert digest is not None
    return digest


def test_jobs_are_listed_by_name_with_how_far_they_are() -> None:
    heading, *listed = rows(hydraulis("jobs", "list"))
    assert heading == ["job", "profile", "GPUs", "planned", "failed", "age"]
    by_name = {row[0]: row[1:5] for row in listed}
    assert list(by_name) == sorted(by_name)
    assert by_name[RUN] == [PROFILE, "8", f"{NUM_PLANNED}/{NUM_PLANNED + 1}", "0"]
    assert by_name[ODD] == [PROFILE, "8", "0/1", "1"]
    assert by_name["idle"] == [PROFILE, "8", "0/0", "0"]


@pytest.mark.parametrize(
    ("what", "model", "fetch"),
    [
        ("jobs", JobSummary, lambda client: client.jobs()),
        ("iterations", IterationSummary, lambda client: client.iterations(RUN)),
        ("plans", PlanSummary, lambda client: client.plans()),
        ("profiles", ProfileSummary, lambda client: client.profiles()),
    ],
)
def test_json_lists_hold_all_that_the_service_tells(what: str, model: Any, fetch: Any, planner: str) -> None:
    with PlannerClient(planner) as client:
        known = fetch(client)
    listed = hydraulis(*LISTS[what], "--json").json()
    assert listed
    assert [model.model_validate(one, extra="forbid") for one in listed] == known


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("jobs", "list"), "there are no jobs here"),
        (("plans", "list"), "there are no plans"),
        (("plans", "list", "--after", "7"), "there are no plans after number 7"),
    ],
)
def test_an_empty_list_says_so_and_is_an_empty_array(
    arguments: tuple[str, ...], said: str, empty_planner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HYDRAULIS_URL", empty_planner)
    done = hydraulis(*arguments)
    assert (done.code, done.out) == (0, "")
    assert said in done.err
    assert hydraulis(*arguments, "--json").json() == []


def test_a_job_without_iterations_says_so() -> None:
    done = hydraulis("iterations", "list", "idle")
    assert (done.code, done.out, done.said) == (0, "", "job idle has no iterations yet")
    done = hydraulis("iterations", "list", RUN, "--after", "7")
    assert (done.code, done.out, done.said) == (0, "", f"job {RUN} has no iterations after 7")
    assert hydraulis("iterations", "list", "idle", "--json").json() == []
    assert facts(hydraulis("jobs", "show", "idle"))["newest"] == "no iteration yet"


@pytest.mark.parametrize("page", [1, 2, 5, 6, 1000])
@pytest.mark.parametrize("what", ["jobs", "iterations", "plans"])
def test_a_list_is_whole_however_many_pages_it_has(what: str, page: int, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = hydraulis(*LISTS[what], "--json").json()
    monkeypatch.setattr("planner_client.commands.paging.PAGE", page)
    assert hydraulis(*LISTS[what], "--json").json() == whole
    for limit in (1, 2, 3, len(whole), len(whole) + 1):
        assert hydraulis(*LISTS[what], "--json", "--limit", str(limit)).json() == whole[:limit]


def test_iterations_are_listed_from_either_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("planner_client.commands.paging.PAGE", 2)

    def listed(*options: str) -> list[int]:
        return [one["iteration"] for one in hydraulis("iterations", "list", RUN, "--json", *options).json()]

    assert listed() == ITERATIONS
    assert listed("--newest-first") == ITERATIONS[::-1]
    assert listed("--newest-first", "--limit", "3") == ITERATIONS[:-4:-1]
    assert listed("--after", "1") == ITERATIONS[2:]
    assert listed("--after", "3", "--newest-first") == [2, 1, 0]


def test_plans_are_listed_after_a_number() -> None:
    whole = hydraulis("plans", "list", "--json").json()
    assert hydraulis("plans", "list", "--json", "--after", str(whole[1]["number"])).json() == whole[2:]
    heading, *listed = rows(hydraulis("plans", "list"))
    assert heading == ["digest (sha256)", "kB", "age"]
    assert [f"sha256:{row[0]}" for row in listed] == [plan["digest"] for plan in whole]


def test_iterations_are_listed_with_predicted_and_measured_times(planner: str) -> None:
    with PlannerClient(planner) as client:
        last = client.iterations(RUN)[NUM_PLANNED - 1]
    heading, *listed = rows(hydraulis("iterations", "list", RUN))
    assert heading == ["#", "state", "strategy", "predicted ms", "measured ms", "gap", "planning ms"]
    assert [(row[0], row[1]) for row in listed] == [
        *((str(number), "planned") for number in range(NUM_PLANNED)),
        ("7", "collecting"),
    ]
    measured = listed[NUM_PLANNED - 1]
    assert last.makespan_ms is not None
    assert measured[2:6] == [last.strategy, f"{last.makespan_ms:,.1f}", "1,234.5", f"{last.gap:.2%}"]
    assert listed[0][4] == "-"
    assert listed[-1][2:] == ["1 reported", "-", "-", "-", "-"]
    assert rows(hydraulis("iterations", "list", ODD))[1] == ["0", "failed", "sources-missing", "-", "-", "-", "-"]


def test_profiles_are_listed_with_what_comes_with_the_planner() -> None:
    listed = {row[0]: row[1:] for row in rows(hydraulis("profiles", "list"))}
    assert listed[PROFILE] == ["LLaMA 7B", "A100 40GB", "10", "built in"]
    assert listed["harmful"][-1] != "built in"


def test_a_job_is_shown_as_it_was_registered(planner: str) -> None:
    with PlannerClient(planner) as client:
        for name in (RUN, ODD, "idle"):
            assert Job.model_validate(hydraulis("jobs", "show", name, "--json").json()) == client.job(name)
    shown = facts(hydraulis("jobs", "show", RUN))
    assert (shown["job"], shown["profile"], shown["strategies"]) == (RUN, PROFILE, "all are searched")
    assert (shown["sources"], shown["options"]) == ("2: node-0, rack/1", "deadline_ms=300")
    assert shown["source wait"] == "600,000 ms; who is missing then is left out"
    assert shown["newest"] == "iteration 7, collecting"
    assert "plan wait" not in shown
    shown = facts(hydraulis("jobs", "show", ODD))
    assert (shown["strategies"], shown["plan wait"]) == ("(2,1)x4", "60,000 ms")
    assert shown["source wait"] == "1 ms; if one is missing then, there is no plan"
    assert facts(hydraulis("jobs", "show", "idle"))["sources"].endswith("node-7 and 12 more")


def test_a_planned_iteration_shows_its_plan_beside_what_was_measured(planner: str) -> None:
    last = str(NUM_PLANNED - 1)
    shown = facts(hydraulis("iterations", "show", RUN, last))
    assert (shown["job"], shown["iteration"], shown["state"]) == (RUN, last, "planned")
    assert f"sha256:{shown['sha256']}" == digest_of(NUM_PLANNED - 1, planner)
    assert shown["measured"] == "1,234.5 ms, the slowest replica"
    heading, *replicas = rows(hydraulis("iterations", "show", RUN, last))[-2:]
    assert heading[-2:] == ["predicted ms", "measured ms"]
    assert replicas[0][-1] == "1,234.5"
    without = hydraulis("iterations", "show", RUN, "0")
    assert "measured" not in without.out


def test_an_iterations_json_is_its_status_with_all_that_was_measured(planner: str) -> None:
    document = hydraulis("iterations", "show", RUN, str(NUM_PLANNED - 1), "--json").json()
    timings = [IterationTimings.model_validate(one) for one in document.pop("timings")]
    with PlannerClient(planner) as client:
        assert IterationStatus.model_validate(document, extra="forbid") == client.iteration(RUN, NUM_PLANNED - 1)
        assert timings == client.timings(RUN, NUM_PLANNED - 1)
    assert [timing.replicas[0].wall_ms for timing in timings] == [900.0, 1234.5]
    assert hydraulis("iterations", "show", RUN, "0", "--json").json()["timings"] == []


def test_an_iterations_plan_can_be_had_alone(planner: str) -> None:
    document = hydraulis("iterations", "show", RUN, "2", "--plan", "--json").json()
    assert Plan.model_validate(document).digest == digest_of(2, planner)
    shown = hydraulis("iterations", "show", RUN, "2", "--plan")
    assert shown == hydraulis("plans", "show", digest_of(2, planner))
    assert "state" not in facts(shown)


def test_an_iteration_without_a_plan_says_what_it_waits_for_or_why() -> None:
    shown = facts(hydraulis("iterations", "show", RUN, "7"))
    assert (shown["state"], shown["reported"], shown["missing"]) == ("collecting", "1 source(s)", "1: rack/1")
    assert "due" in shown
    shown = facts(hydraulis("iterations", "show", ODD, "0"))
    assert shown["state"] == "failed"
    assert "did not report within 1 ms: node-0" in shown["no plan"]
    shown = facts(hydraulis("iterations", "show", RUN, "99"))
    assert (shown["state"], shown["missing"]) == ("nothing reported yet", "2: node-0, rack/1")
    assert "due" not in shown
    assert "due" not in facts(hydraulis("iterations", "show", "idle", "0"))
    for job, iteration, state in ((RUN, "7", "collecting"), (ODD, "0", "failed")):
        done = hydraulis("iterations", "show", job, iteration, "--plan")
        assert (done.code, done.out) == (2, "")
        assert f"iteration {iteration} of job {job} has no plan: it is {state}" in done.said


def test_a_plan_is_shown_by_its_digest_with_or_without_the_name_of_the_hash(planner: str) -> None:
    digest = digest_of(0, planner)
    document = hydraulis("plans", "show", digest, "--json").json()
    with PlannerClient(planner) as client:
        assert Plan.model_validate(document, extra="forbid") == client.plan_with_digest(digest)
    shown = hydraulis("plans", "show", digest)
    assert shown == hydraulis("plans", "show", digest.removeprefix("sha256:").upper())
    named = facts(shown)
    assert named["sha256"] == digest.removeprefix("sha256:")
    assert named["sequences"] == "6 with 6,220 tokens, each of 120 to 3,000"


def test_a_profile_is_shown_as_it_can_be_registered_again() -> None:
    document = hydraulis("profiles", "show", PROFILE, "--json").json()
    assert Profile.model_validate(document).name == PROFILE
    shown = hydraulis("profiles", "show", PROFILE)
    assert facts(shown)["device"].startswith("A100 40GB: ")
    assert [row[0] for row in rows(shown)[6:]] == [f"({one['tp']},{one['pp']})" for one in document["layouts"]]


def test_names_that_would_act_on_a_terminal_are_spelled_out() -> None:
    for command in (("profiles", "list"), ("profiles", "show", "harmful")):
        done = hydraulis(*command)
        assert SPELLED_OUT in done.out
        assert "\x1b" not in done.out
    assert hydraulis("profiles", "show", "harmful", "--json").json()["model"]["name"] == HARMFUL


def test_a_terminal_gets_colours_and_its_own_width_and_a_pipe_gets_neither() -> None:
    done = on_terminal("iterations", "list", ODD, columns=100)
    assert done.code == 0
    assert "\x1b[31mfailed" in done.out
    assert "\x1b[1m" in done.out
    wide = on_terminal("jobs", "list", columns=70)
    lines = without_colours(wide.out).splitlines()
    assert max(map(len, lines)) <= 70
    assert "".join(line.split("  ")[0] for line in lines).count("x") == ODD.count("x")
    piped = apart("iterations", "list", RUN)
    assert piped == hydraulis("iterations", "list", RUN)
    assert (piped.code, piped.err) == (0, "")
    assert "\x1b" not in piped.out
    assert not any(line.endswith(" ") for line in piped.out.splitlines())
    assert ODD in apart("jobs", "list").out


def test_an_ascii_terminal_gets_what_it_can_show() -> None:
    done = apart("profiles", "show", "harmful", env={"PYTHONIOENCODING": "ascii", "LC_ALL": "C"})
    assert (done.code, done.err) == (0, "")
    assert r"a ms/token\xb2" in done.out
