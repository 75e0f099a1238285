import io
import json
from collections import Counter
from dataclasses import asdict, replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from replay_factory import outcomes, planned, replay
from rich.console import Console
from typer.testing import CliRunner

from planner_client.contract import Plan, PlanRequest, parse_strategy
from planner_service.commands.bench import bench
from planner_service.commands.simulate_table import show_replay
from planner_service.profiles import builtin_profiles
from planner_service.simulation.batches import consecutive_batches
from planner_service.simulation.document import document_of
from planner_service.simulation.gantt import MAX_BOXES, MAX_ROWS, gantt_of
from planner_service.simulation.page import render_page
from planner_service.simulation.records import Pipeline, Replay, StaticTrial
from planner_service.simulation.suite import STREAMS, Case, cases_of
from planner_service.simulation.svg import Series, lines, ticks
from planner_service.simulation.totals import totals_of
from planner_service.simulation.truth import untruths
from planner_service.simulation.verdicts import CaseResult, bars_of, broken_invariants, comparisons, headline
from planner_service.translate import plan_request
from planner_service.workloads import builtin_stream

LENGTHS = [700, 20, 3000, 20, 15_000, 900, 64]
PROFILE = builtin_profiles()["llama-7b-a800-80g"]


def table_of(found: Replay) -> str:
    out = Console(width=80, file=io.StringIO())
    show_replay(found, console=out)
    return str(out.file.getvalue())


@given(st.lists(st.integers(1, 50), max_size=60), st.integers(1, 120), st.integers(1, 5), st.integers(1, 50))
def test_batches_are_consecutive_full_and_hold_no_over_long_sequence(
    stream: list[int], num_tokens: int, num_iterations: int, max_length: int
) -> None:
    """Batches of a stream.

    1. Together they are the first of the stream's sequences within the limit, in order.
    2. Each reaches the tokens asked for, and not without its last sequence.
    3. The over-long ones passed on the way are counted.
    4. If the stream is too short the error says how many batches it holds.
    """
    within = [length for length in stream if length <= max_length]
    whole = _num_whole(within, num_tokens)
    if whole < num_iterations:
        with pytest.raises(ValueError, match=f"holds {whole} whole batches"):  # 4
            consecutive_batches(stream, num_tokens, num_iterations, max_length, drops_over_long=True)
        return
    found = consecutive_batches(stream, num_tokens, num_iterations, max_length, drops_over_long=True)
    taken = [length for batch in found.lengths for length in batch]
    assert len(found.lengths) == num_iterations
    assert taken == within[: len(taken)]  # 1
    assert all(sum(batch) >= num_tokens > sum(batch[:-1]) for batch in found.lengths)  # 2
    read = 0
    for position, length in enumerate(stream, 1):  # 3
        read += length <= max_length
        if read == len(taken):
            assert found.num_left_out == sum(length > max_length for length in stream[:position])
            break


def _num_whole(within: list[int], num_tokens: int) -> int:
    count = held = 0
    for length in within:
        held += length
        if held >= num_tokens:
            count, held = count + 1, 0
    return count


def test_an_over_long_sequence_is_refused_naming_its_place_unless_left_out() -> None:
    with pytest.raises(ValueError, match="sequence 3 of the stream has 90 tokens but the limit is 50"):
        consecutive_batches([10, 20, 90, 30], 60, 1, 50, drops_over_long=False)


def test_totals_compare_only_iterations_that_both_planned() -> None:
    found = replay(
        {
            "plain": [planned(200), planned(300), None],
            "free": [planned(100, "(1,1)x1"), None, planned(50, "(2,1)x1")],
        }
    )
    plain, free = totals_of(found)
    assert (plain.num_planned, plain.num_failed, plain.makespan_ms, plain.speed_up) == (2, 1, 500, 1.0)
    assert (free.num_planned, free.num_failed, free.makespan_ms, free.num_switches) == (2, 1, 150, 1)
    assert free.speed_up == pytest.approx(2.0)
    assert free.simulated_speed_up == pytest.approx(2.0)
    assert free.mean_gap == pytest.approx(0.25)
    assert free.mean_all_strategies_gap == pytest.approx(1.0)


def test_a_change_of_strategy_is_charged_to_whoever_changes() -> None:
    plans = {"plain": [planned(100)] * 3, "free": [planned(50), planned(50, "(2,1)x1"), planned(50)]}
    assert totals_of(replay(plans))[1].speed_up == pytest.approx(300 / 150)
    free = totals_of(replay(plans, switch_ms=75))[1]
    assert free.speed_up == pytest.approx(300 / (150 + 2 * 75))
    assert (free.makespan_ms, free.charged_makespan_ms) == (150, 150 + 2 * 75)
    assert free.charged_simulated_ms == pytest.approx(0.9 * 150 + 2 * 75)


def test_the_times_that_people_see_hold_what_changes_of_strategy_are_charged() -> None:
    free = [planned(5000), planned(5000, "(2,1)x1"), planned(5000)]
    found = replay({"plain": [planned(10_000)] * 3, "free": free}, switch_ms=7500)
    text = table_of(found)
    (row,) = [line.split() for line in text.splitlines() if line.split()[:2] == ["free", "3"]]
    assert row[2:5] == ["30.00", "28.50", "1.00x"]
    assert "each change of strategy adds 7500 ms to both times" in " ".join(text.split())
    page = render_page(found)
    assert "<td>free</td><td>3 of 3</td><td>30.00 s</td><td>28.50 s</td><td>1.00x</td>" in page
    assert "hold 7500 ms for each change of strategy" in page


def test_a_planner_without_any_plan_has_no_speed_up() -> None:
    nothing = totals_of(replay({"plain": [planned(100)], "free": [None]}))[1]
    assert (nothing.speed_up, nothing.planning_ms_median, nothing.mean_gap) == (None, None, None)
    assert (nothing.charged_makespan_ms, nothing.charged_simulated_ms) == (None, None)


def test_a_planner_without_any_plan_shows_no_time_and_why() -> None:
    found = replay({"plain": [planned(100)] * 9, "published": [None] * 9, "free": [planned(50)] * 8 + [None]})
    text = table_of(found)
    (row,) = [line.split() for line in text.splitlines() if line.startswith(" published")]
    assert row == ["published", "0/9", *["-"] * 8]
    said = " ".join(text.split())
    assert said.count("published has no plan in any iteration; the first time: deadline-exceeded: none by then") == 1
    assert "free has no plan in iteration 8: deadline-exceeded: none by then" in said
    assert "<td>published</td><td>0, 9 failed (see below)</td><td>-</td><td>-</td>" in render_page(found)


def _plan(**options: object) -> Plan:
    request = PlanRequest.model_validate(
        {
            "profile": PROFILE,
            "num_gpus": 16,
            "strategies": [parse_strategy("(8,1)x1,(2,4)x1")],
            "lengths": LENGTHS,
            "options": options,
        }
    )
    return plan_request(request, [PROFILE], remaining_ms=lambda: 1000.0)


@pytest.mark.parametrize("options", [{}, {"alignment": 128}, {"method": "plain"}])
def test_a_plan_that_is_what_it_says_shows_no_untruth(options: dict[str, object]) -> None:
    assert untruths(_plan(**options), LENGTHS, [PROFILE]) == []


def test_every_kind_of_false_plan_is_found_out() -> None:
    plan = _plan()
    replica = max(plan.replicas, key=lambda replica: len(replica.micro_batches))
    micro_batch = replica.micro_batches[0]

    def changed(**fields: object) -> Plan:
        return plan.model_copy(update=fields)

    def with_replica(**fields: object) -> Plan:
        new = replica.model_copy(update=fields)
        return changed(replicas=[new if entry is replica else entry for entry in plan.replicas])

    def with_micro_batch(**fields: object) -> Plan:
        return with_replica(micro_batches=[micro_batch.model_copy(update=fields), *replica.micro_batches[1:]])

    false = {
        "its makespan is given": changed(makespan_ms=plan.makespan_ms * 1.01),
        "below its own lower bound": changed(lower_bound_ms=plan.makespan_ms * 1.01),
        "below its own lower": changed(all_strategies_lower_bound_ms=plan.makespan_ms * 1.01),
        "over its closed form": changed(simulated_ms=plan.makespan_ms * 1.01),
        "over the cap": with_replica(max_tokens=micro_batch.num_tokens - 1),
        "as given": with_replica(makespan_ms=replica.makespan_ms * 0.99),
        "under 1F1B, not": with_replica(simulated_ms=replica.simulated_ms * 0.99),
        "it places": with_replica(micro_batches=replica.micro_batches[1:]),
        "takes": with_micro_batch(time_ms=micro_batch.time_ms * 0.99),
    }
    for words, told in false.items():
        assert any(words in sentence for sentence in untruths(told, LENGTHS, [PROFILE])), words


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags = Counter[str]()
        self.ids: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            if name in {"src", "href"}:
                self.links.append(value or "")


def _svgs(page: str) -> list[ElementTree.Element]:
    return [ElementTree.fromstring("<svg" + part.split("</svg>")[0] + "</svg>") for part in page.split("<svg")[1:]]  # noqa: S314 - our own text


def test_the_report_is_one_self_contained_page_with_every_chart() -> None:
    trials = [StaticTrial("plain", "(1,1)x2", outcomes("plain", [planned(200), planned(300)]))]
    found = replay(
        {"plain": [planned(200), planned(300)], "fixed": [planned(150), None], "free": [planned(100)] * 2}, trials
    )
    page = render_page(found)
    parsed = _Page()
    parsed.feed(page)
    assert parsed.ids == ["failures", "times", "gaps", "planning", "strategies", "gantt-0", "gantt-1"]
    assert parsed.links == []
    assert parsed.tags["script"] == 0
    assert "made up &lt;&amp;&gt;" in page
    assert "prefers-color-scheme: dark" in page
    assert "deadline-exceeded: none by then" in page
    times, _, _, strip, first, second = _svgs(page)
    hints = [title.text or "" for title in times.iter("{http://www.w3.org/2000/svg}title")]
    assert sorted(hints) == ["fixed, 0: 0.135", "free, 0: 0.09", "free, 1: 0.09", "plain, 0: 0.18", "plain, 1: 0.27"]
    assert "fixed, iteration 1: no plan" in [title.text for title in strip.iter("{http://www.w3.org/2000/svg}title")]
    for gantt in (first, second):
        assert len(list(gantt.iter("{http://www.w3.org/2000/svg}title"))) == 2 + 2 * 2 * 2


def test_a_long_replay_is_drawn_as_lines() -> None:
    page = render_page(replay({"plain": [planned(200)] * 200, "free": [planned(100)] * 200}))
    assert "<polyline" in page.split('id="times"')[1].split("</figure>")[0]


def test_a_gantt_chart_shows_each_operation_and_leaves_out_what_nobody_could_read() -> None:
    gantt = gantt_of(planned(6.0))
    assert gantt.rows == ("#0 (1,1)", "#1 (1,2) stage 0", "#1 (1,2) stage 1")
    assert max(box.end for box in gantt.boxes) == pytest.approx(0.006)
    crowd = gantt_of(planned(6.0, pipelines=tuple(Pipeline("(1,4)", 4, (1.0,) * 50) for _ in range(300))))
    assert len(crowd.rows) <= MAX_ROWS
    assert len(crowd.boxes) <= MAX_BOXES
    assert crowd.num_shown < crowd.num_replicas == 300


@given(st.floats(1e-6, 1e12))
def test_ticks_are_few_ascending_and_reach_the_highest_value(highest: float) -> None:
    found = ticks(highest)
    assert found[0] == 0
    assert found == sorted(set(found))
    assert found[-1] >= highest * (1 - 1e-9)
    assert len(found) <= 7


def test_charts_of_nothing_and_of_equal_values_can_be_drawn() -> None:
    for values in ([], [None], [0.0, 0.0], [5.0]):
        for is_log in (False, True):
            svg = lines("label", [str(index) for index in range(len(values))], [Series("a", values)], is_log=is_log)
            ElementTree.fromstring(svg)  # noqa: S314 - our own text


def test_the_document_has_what_the_replay_has_and_is_json() -> None:
    found = replay({"plain": [planned(200), None], "free": [planned(100), planned(90)]})
    document = json.loads(json.dumps(document_of(found), allow_nan=False))
    assert [entry["planner"] for entry in document["planners"]] == ["plain", "free"]
    assert document["planners"][0]["iterations"][1] == {
        "iteration": 1, "failure": "deadline-exceeded: none by then", "is_defect": False,
    }  # fmt: skip
    assert document["planners"][1]["iterations"][1]["makespan_ms"] == 90
    assert document["planners"][1]["simulated_speed_up"] == pytest.approx(2.0)


CASE = Case("llama-32b-a800-80g", 64, 100_000, "github", 2)


def _result(ours: list[float], rival: list[float], **more: list[float]) -> CaseResult:
    trial = StaticTrial("plain", "(16,1)x4", outcomes("plain", [planned(value) for value in rival]))
    planners = {name: [planned(value) for value in values] for name, values in {"free": ours, **more}.items()}
    return CaseResult(
        CASE, replay({"plain": [planned(v) for v in rival], **planners}, [trial]), None, ("(16,1)x4",), 1.0
    )


def test_a_loss_in_one_iteration_breaks_the_invariant_although_the_total_wins() -> None:
    assert broken_invariants(_result([100, 100], [100, 200])) == []
    (loss,) = broken_invariants(_result([101, 100], [100, 200]))
    assert "free loses iteration 0 to plain" in loss
    (against_fixed,) = broken_invariants(_result([100, 100], [100, 200], **{"fixed-homogeneous": [100, 99]}))
    assert "to fixed-homogeneous" in against_fixed


def test_a_failure_of_this_planner_or_a_defect_of_any_breaks_the_invariant_but_a_late_baseline_does_not() -> None:
    late = CaseResult(CASE, replay({"published": [None], "free": [planned(100)]}))
    assert broken_invariants(late) == []
    assert len(broken_invariants(CaseResult(CASE, replay({"plain": [planned(100)], "free": [None]})))) == 1
    several = CaseResult(CASE, replay({"homogeneous": [planned(100, "(4,1)x1,(2,1)x1")], "free": [planned(100)]}))
    assert "replicas of several kinds" in broken_invariants(several)[0]


def test_the_headline_is_the_ratio_of_total_simulated_times_over_the_static_plain_loader() -> None:
    found = headline(_result([100, 100], [150, 250]))
    assert found is not None
    assert found.speed_up == pytest.approx(2.0)
    assert found.speed_up_holding_max_length == pytest.approx(2.0)
    assert headline(CaseResult(CASE, None, "too long")) is None


def test_the_published_method_is_compared_on_the_same_strategy() -> None:
    result = _result([100, 100], [200, 200], **{"fixed-heterogeneous": [110, 110], "published": [121]})
    (found,) = comparisons(result)
    assert found.makespan_ratio == pytest.approx(1.1)
    assert found.planning_ratio == pytest.approx(1.0)
    late = _result([100, 100], [200, 200], **{"fixed-heterogeneous": [110, 110]})
    late = replace(late, replay=replace(late.replay, outcomes=(*late.replay.outcomes, *outcomes("published", [None]))))
    assert comparisons(late) == []
    (unfinished,) = comparisons(late, published_deadline_ms=5000)
    assert unfinished.makespan_ratio is None
    assert unfinished.planning_ratio == pytest.approx(500)


def test_bars_say_what_was_not_measured_and_what_is_not_met() -> None:
    bars = {bar.name: bar for bar in bars_of([_result([100, 100], [200, 200], **{"fixed-homogeneous": [100, 100]})])}
    assert bars["fixed strategy: mean gap"].is_met is False
    assert bars["fixed strategy: mean gap"].measured == "25.00%"
    assert bars["free: worst planning, 1024 GPUs"].is_met is None
    assert bars["broken invariants (losses, caps, false plans)"].is_met is True


@pytest.mark.parametrize(
    ("gap", "exit_code", "said"),
    [(0.001, 0, ""), (0.25, 1, "fixed strategy: mean gap (25.00%, asked for at most 1.00%)")],
)
def test_a_bar_that_is_not_met_ends_the_bench_with_exit_code_1(
    gap: float, exit_code: int, said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    met = {"gap": gap, "all_strategies_bound_ms": 99.9}
    plans = {name: [planned(100, **met)] for name in ("plain", "fixed-homogeneous", "homogeneous", "free")}
    result = CaseResult(CASE, replay(plans))
    monkeypatch.setattr("planner_service.simulation.bench.run_cases", lambda *_: iter([result]))
    path = tmp_path / "bench.json"
    ended = CliRunner().invoke(bench, ["planning", "--suite", "quick", "--json", str(path)])
    assert ended.exit_code == exit_code
    assert said in ended.stderr
    bars = {bar["name"]: bar["is_met"] for bar in json.loads(path.read_text())["bars"]}
    assert bars["fixed strategy: mean gap"] is (exit_code == 0)
    told = CliRunner().invoke(bench, ["planning", "--help"], env={"COLUMNS": "200"}).output
    assert "or a bar is not met" in " ".join(told.split())


def test_the_full_suite_is_what_the_bars_speak_of() -> None:
    cases = cases_of("full")
    assert len(cases) == 4 * 3 * 2 * 5 + 5
    assert {case.stream for case in cases} == set(STREAMS)
    assert {case.num_tokens for case in cases if case.is_large} == {1_600_000}
    for case in (case for case in cases if case.is_large):
        consecutive_batches(
            builtin_stream(case.stream), case.num_tokens, case.num_iterations, 32768, drops_over_long=True
        )
    assert {asdict(case)["profile"] for case in cases_of("quick", "llama-7b-a100-40g")} == {"llama-7b-a100-40g"}
    with pytest.raises(ValueError, match="no profile 'gpt-9'"):
        cases_of("quick", "gpt-9")
