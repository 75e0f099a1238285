import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from outcome_factory import make_changing, make_changing_record, make_outcome, make_record, make_replica

from worker_agent.demo.charts import draw_charts
from worker_agent.demo.report import render_report, write_report

CHARTS = {
    "loads": ("CPU time (s)", "iteration", "rank 0", "rank 1"),
    "lengths": ("length (tokens)", "sequences"),
    "predictions": ("predicted time (s)", "measured CPU time (s)", "predicted = measured"),
    "losses": ("loss (nats per token)", "iteration"),
    "planning": ("time (ms)", "iteration"),
    "strategies": ("rank", "(2,1)", "2,345", "loss (nats per token)", "one process alone", "(1,1)x2"),
}
VOID = {"meta", "br", "link", "img", "input", "hr"}


class Page(HTMLParser):
    """Collects what the tests ask about and insists that tags are balanced."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open_tags: list[str] = []
        self.ids: list[str] = []
        self.references: list[str] = []
        self.tags: set[str] = set()
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._note(tag, attrs)
        if tag not in VOID:
            self.open_tags.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._note(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self.open_tags, f"</{tag}> closes nothing"
        assert self.open_tags.pop() == tag

    def _note(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            if name in {"href", "src"}:
                self.references.append(value or "")


@pytest.fixture(scope="module")
def report() -> str:
    return render_report(make_outcome())


def test_the_report_is_balanced_html_with_ids_that_stand_once(report: str) -> None:
    page = Page(report)
    assert page.open_tags == []
    assert len(page.ids) == len(set(page.ids))
    assert {"html", "head", "title", "body", "main", "table", "svg"} <= page.tags


def test_the_report_needs_nothing_from_outside(report: str) -> None:
    page = Page(report)
    assert "http" not in report
    assert not {"script", "link", "img", "iframe"} & page.tags
    assert "@import" not in report
    assert all(reference.startswith("#") for reference in page.references)
    ids = set(page.ids)
    assert {reference.removeprefix("#") for reference in page.references} <= ids
    assert set(re.findall(r"url\(#([^)]*)\)", report)) <= ids


@pytest.mark.parametrize("name", sorted(CHARTS))
def test_each_chart_is_there_with_its_labels_as_text(report: str, name: str) -> None:
    begin = report.index(f'<figure id="{name}">')
    chart = report[begin : report.index("</figure>", begin)]
    assert "<figcaption>" in chart
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", chart)
    for label in CHARTS[name]:
        assert label in texts
    assert "<path" in chart


def test_every_colour_of_a_chart_follows_the_page(report: str) -> None:
    declared = set(re.findall(r"(--[a-z-]+):", report))
    for chart in draw_charts(make_outcome()).values():
        painted = set(re.findall(r"(?:fill|stroke): ([^;\"]+)", chart))
        assert painted
        for colour in painted - {"none"}:
            variable = re.fullmatch(r"var\((--[a-z-]+)\)", colour.strip())
            assert variable, f"{colour} stays the same in the dark"
            assert variable[1] in declared


def test_settings_are_escaped(report: str) -> None:
    assert "<script>" not in report
    assert "&lt;script&gt;&amp;" in report


def test_the_report_names_what_was_left_out_and_the_figures(report: str) -> None:
    assert "4 longer than 4096 tokens, left out (99,999 tokens) + 2 empty" in report
    assert "1.54x" in report
    assert "losses agree" in report


def test_other_load_on_the_machine_is_said_where_there_was_some() -> None:
    loaded = (make_record("plain", 0, cpu_ms=(700.0, 240.0)), make_record("planned", 0, cpu_ms=(500.0, 480.0)))
    assert "other work ran on this machine" in render_report(make_outcome(records=loaded))
    assert "other work ran on this machine" not in render_report(make_outcome())


def test_losses_that_disagree_are_said_to() -> None:
    records = (make_record("plain", 0, loss=2.0), make_record("planned", 0, loss=3.0))
    assert "losses DISAGREE" in render_report(make_outcome(records=records))


def test_the_report_shows_what_every_iteration_of_changing_strategies_ran(report: str) -> None:
    for text in ("(2,1)x1,(1,1)x2", "0-1: 2,345; 2: 1,234; 3: 1,234", "2.500000", "0.0e+00", "2.0 %"):
        assert f"<td>{text}</td>" in report
    assert "The costs planned by are estimated, not measured &lt;&amp;&gt;." in report


def test_changing_strategies_whose_loss_is_another_are_said_to_disagree() -> None:
    page = render_report(make_outcome(changing=make_changing(make_changing_record(0, loss=5.001))))
    assert "changing strategies against one process: losses DISAGREE" in page
    assert "Losses DISAGREE: largest relative difference 2.0e-04" in page


def test_idle_replicas_and_those_with_a_gap_between_their_ranks_can_be_reported() -> None:
    idle = make_replica((1,), 0, num_micro_batches=0, num_sequences=0)
    record = make_changing_record(0, replicas=(make_replica((0, 2, 3)), idle))
    outcome = make_outcome(changing=make_changing(record))
    assert "<td>0,2-3: 1,234; 1: idle</td>" in render_report(outcome)
    assert draw_charts(outcome)["strategies"].count("(3,1)") == 2


def test_a_single_iteration_without_a_bound_can_be_reported(tmp_path: Path) -> None:
    records = (make_record("plain", 0, gap=None), make_record("planned", 0, gap=None, waited_ms=0.0))
    path = tmp_path / "report.html"
    write_report(make_outcome(records=records), path)
    assert "none proven" in path.read_text(encoding="utf-8")
    assert Page(path.read_text(encoding="utf-8")).open_tags == []


def test_the_same_outcome_gives_the_same_report() -> None:
    assert render_report(make_outcome(2)) == render_report(make_outcome(2))
