"""The dashboard in a real browser, on a real service: one that asks nobody for tokens, and one that does."""

import re
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest
from browsing import Visitor, chromium
from playwright.sync_api import Browser, expect
from trained_jobs import HOSTILE, TrainedJob, prepare

sys.path.append(str(Path(__file__).parents[1] / "service"))
from served_planner import servers

NUM_TRAINED = 4
LAST_OF_PAGE = "A Description of the interface"
JOB = "#/jobs/mine-trained"
UNKNOWN_TOKEN = "hyd_" + "x" * 43

expect.set_options(timeout=30_000)


class Services(NamedTuple):
    """Where the services are, and tokens of the one that asks for them."""

    open: str
    guarded: str
    tokens: dict[str, str]


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    directory = tmp_path_factory.mktemp("dashboard")
    prepare(directory / "open.sqlite3")
    tokens = prepare(directory / "guarded.sqlite3")
    with servers(directory) as start, ThreadPoolExecutor(2) as pool:
        ways = {"open": "auto", "guarded": "tokens"}
        begun = [
            pool.submit(start, "--workers", "1", database=directory / f"{name}.sqlite3", env={"HYDRAULIS_AUTH": auth})
            for name, auth in ways.items()
        ]
        urls = [each.result().url for each in begun]
        services = Services(urls[0], urls[1], tokens)
        trained = TrainedJob(services.open, "mine-trained").train(NUM_TRAINED)
        trained.fail(NUM_TRAINED)
        TrainedJob(services.guarded, "mine-1", tokens["all"])
        TrainedJob(services.guarded, "theirs", tokens["all"])
        yield services


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.fixture
def visit(browser: Browser, services: Services) -> Iterator[Callable[..., Visitor]]:
    """Open windows; none of them may complain, nor ask another place than the service."""
    opened: list[Visitor] = []

    def open_window(url: str = services.open, **window: object) -> Visitor:
        opened.append(Visitor.of(browser, url, **window))
        return opened[-1]

    yield open_window
    for visitor in opened:
        visitor.page.context.close()
        assert visitor.complaints == []
        assert all(address.startswith((visitor.url, "blob:")) for address in visitor.addresses)


def test_jobs_are_listed_with_what_the_service_holds(visit: Callable[..., Visitor]) -> None:
    visitor = visit()
    page = visitor.go()
    row = page.get_by_role("row").filter(has=page.get_by_role("link", name="mine-trained"))
    cells = row.get_by_role("cell").all_inner_texts()
    assert cells[:6] == ["llama-32b-a800-80g", "64", "2", str(NUM_TRAINED), str(NUM_TRAINED), "1"]
    expect(page.get_by_text("Ready", exact=True)).to_be_visible()


def test_a_job_shows_its_iterations_predicted_and_measured(visit: Callable[..., Visitor], services: Services) -> None:
    visitor = visit()
    page = visitor.go(JOB)
    plan = TrainedJob(services.open, "mine-trained").plan(2)
    row = page.get_by_role("row").filter(has=page.get_by_role("link", name="2", exact=True))
    told = row.inner_text()
    assert f"{plan['makespan_ms']:,.0f} ms" in told
    assert "+5.00 %" in told
    assert plan["strategy"] in told
    failed = page.get_by_role("row").filter(has=page.get_by_role("link", name=str(NUM_TRAINED), exact=True))
    assert "no plan" in failed.inner_text()
    page.get_by_text("The same as a table").click()
    rows = page.get_by_role("table", name="means of each row").get_by_role("row")
    expect(rows).to_have_count(NUM_TRAINED + 2)
    assert len(page.locator("svg path.line").all()) == 5 - 1


def test_an_iteration_shows_what_was_chosen_and_why(visit: Callable[..., Visitor], services: Services) -> None:
    visitor = visit()
    page = visitor.go(f"{JOB}/iterations/1")
    plan = TrainedJob(services.open, "mine-trained").plan(1)
    text = visitor.text()
    assert plan["strategy"] in text
    assert f"{plan['lower_bound_ms']:,.0f} ms" in text
    assert "(4,1)x16" in text
    assert plan["passed_over"][0]["reason"] in text
    chosen = page.get_by_role("table", name="Candidate strategies of the job").get_by_role("row").nth(1).inner_text()
    assert chosen.split("\t")[:2] == [plan["strategy"], f"{plan['lower_bound_ms']:,.0f} ms"]
    assert chosen.endswith("chosen")
    assert plan["digest"] in text
    replicas = page.get_by_role("table", name="Replicas of iteration 1").get_by_role("row")
    expect(replicas).to_have_count(1 + len(plan["replicas"]))
    for name, rows in {"Timeline": 1 + 3 * 2, "Load of each replica": 4}.items():
        card = page.get_by_role("region", name=name, exact=True)
        card.get_by_text("The same as a table").click()
        expect(card.get_by_role("table").get_by_role("row")).to_have_count(1 + rows)
    with page.expect_download() as saved:
        page.get_by_role("button", name="Download the plan").click()
    assert plan["digest"] in Path(saved.value.path()).read_text()


def test_an_iteration_without_a_plan_says_why_with_code_and_remedy(visit: Callable[..., Visitor]) -> None:
    visitor = visit()
    visitor.go(f"{JOB}/iterations/{NUM_TRAINED}")
    text = visitor.text()
    assert "sequence-too-long" in text
    assert "What to do:" in text
    assert "1000000" in text


def test_what_is_not_there_is_said_with_code_and_remedy(visit: Callable[..., Visitor]) -> None:
    visitor = visit()
    page = visitor.page
    page.goto(f"{visitor.url}/#/jobs/nobody")
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("unknown-job")
    expect(alert).to_contain_text("What to do: register it")
    page.goto(f"{visitor.url}/#/elsewhere")
    expect(page.get_by_role("heading", level=1)).to_have_text("There is nothing at this address")


def test_a_plan_is_shown_as_soon_as_it_is_made(visit: Callable[..., Visitor], services: Services) -> None:
    job = TrainedJob(services.open, "live")
    visitor = visit()
    page = visitor.go("#/jobs/live")
    assert "Nobody has reported an iteration yet." in visitor.text()
    job.report(0)
    job.plan(0)
    expect(page.get_by_role("link", name="0", exact=True)).to_be_visible()
    expect(page.get_by_text("0 to 0", exact=False).or_(page.get_by_text("0 of 1 iteration"))).to_be_visible()
    # An iteration that is looked at before it is planned becomes its plan by itself, and so do its times.
    page.get_by_role("link", name="0", exact=True).click()
    expect(page.get_by_role("heading", name="What was chosen, and why")).to_be_visible()
    assert "no times came yet" in visitor.text()
    job.measure(0, factor=1.25)
    expect(visitor.main).to_contain_text("+25.0 % against predicted")


def test_a_lost_service_is_said_and_found_again(visit: Callable[..., Visitor]) -> None:
    visitor = visit()
    page = visitor.go(JOB)
    page.context.set_offline(True)
    expect(page.get_by_role("alert")).to_contain_text("unreachable")
    expect(page.get_by_role("status").first).to_contain_text("asks again")
    assert page.get_by_role("link", name="2", exact=True).is_visible()  # what was shown stays
    page.context.set_offline(False)
    visitor.settled()
    expect(page.get_by_role("alert")).to_have_count(0)


def test_all_is_reached_by_keyboard(visit: Callable[..., Visitor]) -> None:
    visitor = visit()
    page = visitor.go()
    page.keyboard.press("Tab")
    assert visitor.focused == "A Skip to the content"
    page.keyboard.press("Enter")
    assert visitor.focused.startswith("MAIN")
    while visitor.focused != "A mine-trained":
        page.keyboard.press("Tab")
        assert visitor.focused != LAST_OF_PAGE
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("mine-trained")
    visitor.settled()
    assert visitor.focused.startswith("MAIN")
    cursor = page.get_by_role("slider", name="Iteration in the charts")
    while not cursor.evaluate("(element) => element === document.activeElement"):
        page.keyboard.press("Tab")
        assert visitor.focused != LAST_OF_PAGE
    assert cursor.get_attribute("aria-valuetext").startswith(f"Iteration {NUM_TRAINED}: ")  # type: ignore[union-attr]
    page.keyboard.press("Home")
    assert cursor.get_attribute("aria-valuetext").startswith("Iteration 0: predicted ")  # type: ignore[union-attr]
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("Iteration 1")
    visitor.settled()
    page.go_back()
    expect(page.get_by_role("heading", level=1)).to_have_text("mine-trained")


def test_colours_follow_the_system_and_the_switch(visit: Callable[..., Visitor]) -> None:
    visitor = visit(color_scheme="dark")
    page = visitor.go(JOB)

    def background() -> int:
        found = page.evaluate("() => getComputedStyle(document.body).backgroundColor")
        return sum(int(part) for part in re.findall(r"\d+", found)[:3])

    assert background() < 150
    page.get_by_label("Colours").select_option("Light")
    assert background() > 600
    page.reload()
    visitor.settled()
    assert background() > 600
    page.get_by_label("Colours").select_option("Auto")
    assert background() < 150


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_grave_fault(scheme: str, visit: Callable[..., Visitor]) -> None:
    visitor = visit(color_scheme=scheme)
    views = ["", JOB, f"{JOB}/iterations/1", f"{JOB}/iterations/{NUM_TRAINED}"]
    for view in views if scheme == "light" else views[1:3]:
        page = visitor.go(view)
        for details in page.locator("summary").all():
            details.click()
        assert visitor.grave_faults() == [], view


def test_axe_would_find_faults(visit: Callable[..., Visitor]) -> None:
    visitor = visit()
    page = visitor.go()
    page.evaluate("() => { document.querySelector('main h1').style.color = '#ddd'; }")
    page.evaluate("() => document.querySelector('.control span').remove()")
    assert {fault.partition(":")[0] for fault in visitor.grave_faults()} == {"color-contrast", "select-name"}


def test_hostile_names_are_text(visit: Callable[..., Visitor]) -> None:
    visitor = visit()
    page = visitor.go()
    page.on("dialog", lambda dialog: visitor.complaints.append(dialog.message))
    page.get_by_role("link", name=HOSTILE).click()
    expect(page.get_by_role("heading", level=1)).to_have_text(HOSTILE)
    visitor.settled()
    assert HOSTILE in page.title()
    page.get_by_role("link", name="0", exact=True).click()
    expect(page.get_by_role("heading", name="What was chosen, and why")).to_be_visible()
    assert visitor.text().count(HOSTILE) > 5
    assert page.locator("#main img").count() == 0
    assert page.evaluate("() => document.scripts.length") == 1


def test_a_token_is_asked_for_kept_in_the_tab_and_never_in_an_address(
    visit: Callable[..., Visitor], services: Services
) -> None:
    visitor = visit(services.guarded)
    page = visitor.page
    page.goto(f"{visitor.url}/#/jobs/mine-1")
    expect(page.get_by_role("heading", level=1)).to_have_text("This service asks for a token")
    expect(page.get_by_role("alert")).to_contain_text("unauthenticated")
    assert visitor.grave_faults() == []
    page.get_by_label("Token", exact=True).fill(UNKNOWN_TOKEN)
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("What to do")
    page.get_by_label("Token", exact=True).fill(services.tokens["all"])
    page.get_by_role("button", name="Go on").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("mine-1")
    visitor.settled()
    page.reload()
    visitor.settled()  # the tab still has it
    kept = page.evaluate("() => [Object.values(sessionStorage), Object.values(localStorage), document.cookie]")
    assert kept == [[services.tokens["all"]], [], ""]
    assert not [address for address in visitor.addresses if "hyd_" in address]
    assert "hyd_" not in page.url
    page.get_by_role("button", name="Forget the token").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("This service asks for a token")
    assert page.evaluate("() => sessionStorage.length") == 0


def test_who_may_not_see_a_job_is_told_so_plainly(visit: Callable[..., Visitor], services: Services) -> None:
    visitor = visit(services.guarded, token=services.tokens["mine"])
    page = visitor.go()
    assert page.get_by_role("link", name="mine-1").is_visible()
    assert "theirs" not in visitor.text()
    page.goto(f"{visitor.url}/#/jobs/theirs")
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("forbidden")
    expect(alert).to_contain_text("What to do: use a token")
    page.get_by_role("button", name="Use another token").click()
    expect(page.get_by_label("Token", exact=True)).to_be_focused()
