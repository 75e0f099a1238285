"""What is deleted, and that nothing is deleted by accident."""

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import pytest
from command_line import apart, hydraulis, on_terminal, without_colours
from contents import PROFILE, RUN, one_shot, profile_named, spec

from planner_client import PlannerClient, RequestRefused

KINDS = ("jobs", "plans", "profiles")


@pytest.fixture
def client(planner: str) -> Iterator[PlannerClient]:
    with PlannerClient(planner) as made:
        yield made


class Victims:
    """Things of one kind that a test may delete."""

    def __init__(self, client: PlannerClient, kind: str) -> None:
        self.kind = kind
        self._client = client

    def make(self, number: int) -> str:
        if self.kind == "jobs":
            return self._client.register_job(spec(f"victim-{number}")).name
        if self.kind == "profiles":
            return self._client.register_profile(profile_named(self._client, f"victim-{number}")).name
        return one_shot(self._client, 1000 + number, 77).digest

    def names(self) -> list[str]:
        return [one.get("digest") or one["name"] for one in hydraulis(self.kind, "list", "--json").json()]

    def delete(self, name: str) -> None:
        delete = {
            "jobs": self._client.delete_job,
            "plans": self._client.delete_plan,
            "profiles": self._client.delete_profile,
        }
        with contextlib.suppress(RequestRefused):
            delete[self.kind](name)


@pytest.fixture(params=KINDS)
def victims(request: pytest.FixtureRequest, client: PlannerClient) -> Iterator[Victims]:
    made = Victims(client, request.param)
    before = made.names()
    yield made
    for name in set(made.names()) - set(before):
        made.delete(name)


def test_what_is_named_is_deleted_and_nothing_else(victims: Victims) -> None:
    before = victims.names()
    first, second, third = (victims.make(number) for number in range(3))
    done = hydraulis(victims.kind, "delete", first, third, first, "--yes")
    assert (done.code, done.out) == (0, "")
    kind = victims.kind.removesuffix("s")
    assert done.err == f"{kind} {first} is deleted\n{kind} {third} is deleted\n"
    assert sorted(victims.names()) == sorted([*before, second])


def test_without_a_terminal_nothing_is_deleted_unless_it_is_confirmed_beforehand(victims: Victims) -> None:
    name = victims.make(0)
    for done in (hydraulis(victims.kind, "delete", name), apart(victims.kind, "delete", name, stdin=None, input="y\n")):
        assert (done.code, done.out) == (2, "")
        assert "deleting needs --yes where there is no terminal to ask on; nothing is deleted" in done.said
    assert name in victims.names()


@pytest.mark.parametrize(
    ("typed", "code"), [("y\n", 0), ("YES\n", 0), ("n\n", 1), ("\n", 1), ("\x04", 1), ("yesterday\n", 1)]
)
def test_on_a_terminal_only_a_yes_deletes(typed: str, code: int, client: PlannerClient) -> None:
    victims = Victims(client, "jobs")
    name = victims.make(0)
    done = on_terminal("jobs", "delete", name, typed=typed)
    shown = without_colours(done.out)
    assert f"delete job {name} with all iterations and measured times? [y/N]" in shown
    assert done.code == code, shown
    assert (name in victims.names()) == (code != 0)
    if code == 1:
        assert "hydraulis jobs delete: nothing is deleted" in shown
    victims.delete(name)


def test_ctrl_c_at_the_question_deletes_nothing(client: PlannerClient) -> None:
    victims = Victims(client, "jobs")
    name = victims.make(0)
    done = on_terminal("jobs", "delete", name, interrupt_at="[y/N]")
    assert (done.code, done.out.endswith("hydraulis jobs delete: stopped\r\n")) == (130, True)
    assert name in victims.names()
    victims.delete(name)


def test_the_question_names_the_first_of_many(client: PlannerClient) -> None:
    victims = Victims(client, "jobs")
    names = [victims.make(number) for number in range(10)]
    shown = without_colours(on_terminal("jobs", "delete", *names, typed="n\n", columns=300).out)
    assert f"delete 10 jobs: {', '.join(names[:8])} and 2 more with all iterations and measured times? [y/N]" in shown
    assert hydraulis("jobs", "delete", *names, "-y").code == 0
    assert not set(names) & set(victims.names())


def test_nothing_is_asked_or_deleted_if_one_of_the_names_is_unknown(victims: Victims) -> None:
    name = victims.make(0)
    unknown = f"sha256:{'0' * 64}" if victims.kind == "plans" else "nobody"
    done = hydraulis(victims.kind, "delete", name, unknown, "--yes")
    assert (done.code, done.out) == (2, "")
    assert unknown in done.said
    assert name in victims.names()


def test_a_deletion_that_fails_in_the_middle_says_how_far_it_came(client: PlannerClient) -> None:
    name = client.register_profile(profile_named(client, "victim-0")).name
    done = hydraulis("profiles", "delete", name, PROFILE, "--yes")
    assert (done.code, done.out) == (2, "")
    assert done.err.splitlines() == [
        f"profile {name} is deleted",
        f"1 of 2 profiles deleted, then {PROFILE} failed",
        f"hydraulis profiles delete: profile '{PROFILE}' comes with the planner [profile-in-use]; "
        "delete the jobs that use it first",
    ]
    assert name not in [one.name for one in client.profiles()]


def test_what_a_job_uses_is_not_deleted(client: PlannerClient) -> None:
    digest = client.iteration(RUN, 0).digest
    assert digest is not None
    done = hydraulis("plans", "delete", digest, "--yes")
    assert (done.code, "[plan-in-use]" in done.said) == (2, True)
    client.register_profile(profile_named(client, "used"))
    client.register_job(spec("user", profile="used"))
    done = hydraulis("profiles", "delete", "used", "--yes")
    assert (done.code, "[profile-in-use]" in done.said) == (2, True)
    assert hydraulis("jobs", "delete", "user", "--yes").code == 0
    assert hydraulis("profiles", "delete", "used", "--yes").code == 0


def test_what_goes_between_the_look_and_the_deletion_is_an_error(
    client: PlannerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = Victims(client, "jobs").make(0)
    real = PlannerClient.job

    def deleted_meanwhile(*arguments: Any, **options: Any) -> Any:
        found = real(*arguments, **options)
        client.delete_job(name)
        return found

    monkeypatch.setattr(PlannerClient, "job", deleted_meanwhile)
    done = hydraulis("jobs", "delete", name, "--yes")
    assert (done.code, "[unknown-job]" in done.said, "is deleted" in done.said) == (2, True, False)


@pytest.mark.parametrize("kind", KINDS)
def test_something_to_delete_has_to_be_named(kind: str) -> None:
    done = hydraulis(kind, "delete", "--yes")
    assert (done.code, done.out) == (2, "")
    assert "Missing argument" in done.said


def test_iterations_go_with_their_job_only() -> None:
    done = hydraulis("iterations", "delete")
    assert (done.code, "No such command" in done.said) == (2, True)
    assert "deleted with their job" in " ".join(hydraulis("iterations", "--help").out.replace("│", " ").split())


def test_an_exported_job_can_be_registered_again_after_its_deletion(client: PlannerClient) -> None:
    name = Victims(client, "jobs").make(0)
    (exported,) = json.loads(hydraulis("jobs", "export", name).out)
    assert hydraulis("jobs", "delete", name, "--yes").code == 0
    assert client.register_job(spec(name).model_validate(exported["spec"])).spec == spec(name)
    client.delete_job(name)
