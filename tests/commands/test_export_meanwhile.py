"""Exports of a service that goes on: what is deleted while they are written is left out, and said."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from command_line import hydraulis
from contents import one_shot, planned, profile_named, spec

from planner_client import PlannerClient

Delete = Callable[[PlannerClient], None]


def deletes_at_first_look(monkeypatch: pytest.MonkeyPatch, method: str, delete: Delete) -> None:
    """Let somebody delete something once the list was read and the first one of it is about to be."""
    look: Callable[..., Any] = getattr(PlannerClient, method)
    is_first = True

    def looking(client: PlannerClient, *names: object, **options: object) -> Any:
        nonlocal is_first
        if is_first:
            is_first = False
            delete(client)
        return look(client, *names, **options)

    monkeypatch.setattr(PlannerClient, method, looking)


@pytest.mark.parametrize("kind", ["jobs", "profiles", "plans"])
def test_what_is_deleted_while_a_list_is_exported_is_left_out_and_the_rest_is_written(
    kind: str, planner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: Sequence[str]
    with PlannerClient(planner) as client:
        if kind == "jobs":
            names = [client.register_job(spec(f"zz-{number}")).name for number in range(2)]
        elif kind == "profiles":
            names = [client.register_profile(profile_named(client, f"zz-{number}")).name for number in range(2)]
        else:
            names = [one_shot(client, 4321, 1 + number).digest for number in range(2)]
        method, delete = {
            "jobs": ("job", client.delete_job),
            "profiles": ("profile", client.delete_profile),
            "plans": ("plan_with_digest", client.delete_plan),
        }[kind]
        deletes_at_first_look(monkeypatch, method, lambda _: delete(names[0]))
        done = hydraulis(kind, "export", "--format", "csv")
        delete(names[1])
    assert done.code == 0, done.err
    assert names[1] in done.out
    assert names[0] not in done.out
    assert f"{kind} were deleted meanwhile and are left out" in done.said


def test_a_job_deleted_while_its_iterations_are_exported_leaves_none(
    planner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with PlannerClient(planner) as client:
        client.register_job(spec("zz-going"))
        for iteration in range(2):
            planned(client, "zz-going", iteration)
        deletes_at_first_look(monkeypatch, "iteration_plan", lambda asking: asking.delete_job("zz-going"))
        done = hydraulis("iterations", "export", "zz-going")
    assert (done.code, done.out) == (0, "[]\n")
    assert done.said == "2 of 2 iterations were deleted meanwhile and are left out"


def test_iterations_of_another_job_of_the_name_are_not_taken_for_those_listed(
    planner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def replace(client: PlannerClient) -> None:
        client.delete_job("zz-again")
        client.register_job(spec("zz-again", num_gpus=16))
        planned(client, "zz-again", 0)

    with PlannerClient(planner) as client:
        client.register_job(spec("zz-again"))
        planned(client, "zz-again", 0)
        with monkeypatch.context() as patch:
            # The replacement asks for a plan itself, with the method as it was.
            deletes_at_first_look(patch, "iteration_plan", replace)
            done = hydraulis("iterations", "export", "zz-again")
        client.delete_job("zz-again")
    assert (done.code, done.out) == (0, "[]\n")
    assert "1 of 1 iterations" in done.said


def test_what_was_named_has_to_be_there_to_the_end(planner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with PlannerClient(planner) as client:
        names = [client.register_job(spec(f"zz-named-{number}")).name for number in range(2)]
        deletes_at_first_look(monkeypatch, "job", lambda asking: asking.delete_job(names[1]))
        done = hydraulis("jobs", "export", *names)
        client.delete_job(names[0])
    assert done.code == 2
    assert f"there is no job '{names[1]}'" in done.said
