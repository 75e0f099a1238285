"""Alerts fire when they should and not otherwise, on series that the service really has, and each has a runbook.

Prometheus' own promtool evaluates them over made-up series.
"""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from alert_rules import groups, promtool, rules, write_rules
from fastapi.testclient import TestClient
from rendered import ROOT, of_kind, rendered

from planner_service.api import create_app
from planner_service.settings import Settings

PAGE = (ROOT / "docs" / "operations.md").read_text()
ON_PLANNER = 'job="hydraulis-planner",instance="a"'
HOURS = "x90"
"""Three hours, a sample in two minutes."""

HEALTHY = {
    f"up{{{ON_PLANNER}}}": f"1+0{HOURS}",
    f'hydraulis_build_info{{version="1",{ON_PLANNER}}}': f"1+0{HOURS}",
    f"hydraulis_store_up{{{ON_PLANNER}}}": f"1+0{HOURS}",
    f'hydraulis_store_errors_total{{operation="read",{ON_PLANNER}}}': f"7+0{HOURS}",
    f"hydraulis_solvers{{{ON_PLANNER}}}": f"2+0{HOURS}",
    f"hydraulis_solvers_ready{{{ON_PLANNER}}}": f"2+0{HOURS}",
    f'hydraulis_http_refusals_total{{code="internal",{ON_PLANNER}}}': f"1+0{HOURS}",
    f'hydraulis_http_refusals_total{{code="overloaded",{ON_PLANNER}}}': f"9+0{HOURS}",
    f'hydraulis_http_refusals_total{{code="unknown-job",{ON_PLANNER}}}': f"0+5{HOURS}",
    f"hydraulis_iterations_oldest_due_seconds{{{ON_PLANNER}}}": f"0.2+0{HOURS}",
    f'hydraulis_iterations_total{{outcome="planned",sources="complete",{ON_PLANNER}}}': f"0+6{HOURS}",
    f'hydraulis_iterations_total{{outcome="too late",sources="complete",{ON_PLANNER}}}': f"3+0{HOURS}",
    f"hydraulis_leases_lost_total{{{ON_PLANNER}}}": f"2+0{HOURS}",
    f"hydraulis_fallback_iterations_total{{{ON_PLANNER}}}": f"0+1{HOURS}",
    f"hydraulis_measured_iterations_total{{{ON_PLANNER}}}": f"0+100{HOURS}",
    f'hydraulis_measured_over_predicted_ratio_bucket{{le="1.1",{ON_PLANNER}}}': f"0+90{HOURS}",
    f'hydraulis_measured_over_predicted_ratio_bucket{{le="2",{ON_PLANNER}}}': f"0+100{HOURS}",
    f'hydraulis_measured_over_predicted_ratio_bucket{{le="+Inf",{ON_PLANNER}}}': f"0+100{HOURS}",
    f'hydraulis_plan_gap_ratio_bucket{{le="0.01",{ON_PLANNER}}}': f"0+95{HOURS}",
    f'hydraulis_plan_gap_ratio_bucket{{le="0.2",{ON_PLANNER}}}': f"0+100{HOURS}",
    f'hydraulis_plan_gap_ratio_bucket{{le="+Inf",{ON_PLANNER}}}': f"0+100{HOURS}",
    f"process_open_fds{{{ON_PLANNER}}}": f"100+0{HOURS}",
    f"process_max_fds{{{ON_PLANNER}}}": f"1024+0{HOURS}",
}
"""A planner that had trouble long ago and has none now."""

TROUBLE: dict[str, dict[str, str]] = {
    "HydraulisPlannerDown": {"hydraulis_build_info": ""},
    "HydraulisPlannerUnreachable": {"up": f"0+0{HOURS}"},
    "HydraulisDatabaseDown": {"hydraulis_store_up": f"0+0{HOURS}"},
    "HydraulisDatabaseErrors": {"hydraulis_store_errors_total": f"0+1{HOURS}"},
    "HydraulisNoSolvers": {"hydraulis_solvers_ready": f"0+0{HOURS}"},
    "HydraulisSolversMissing": {"hydraulis_solvers_ready": f"1+0{HOURS}"},
    "HydraulisDefect": {'hydraulis_http_refusals_total{code="internal"': f"0+1{HOURS}"},
    "HydraulisOverloaded": {'hydraulis_http_refusals_total{code="overloaded"': f"0+10{HOURS}"},
    "HydraulisIterationsWaiting": {"hydraulis_iterations_oldest_due_seconds": f"0+60{HOURS}"},
    "HydraulisPlansTooLate": {'hydraulis_iterations_total{outcome="too late"': f"0+2{HOURS}"},
    "HydraulisLeasesLost": {"hydraulis_leases_lost_total": f"0+1{HOURS}"},
    "HydraulisFallbacks": {"hydraulis_fallback_iterations_total": f"0+10{HOURS}"},
    "HydraulisDrift": {'hydraulis_measured_over_predicted_ratio_bucket{le="1.1"': f"0+10{HOURS}"},
    "HydraulisGap": {'hydraulis_plan_gap_ratio_bucket{le="0.01"': f"0+50{HOURS}"},
    "HydraulisOpenFiles": {"process_open_fds": f"1000+0{HOURS}"},
}
"""For each alert, what is otherwise on a planner for it to fire; an empty text: the series is not there."""

WITH_OTHERS = {"HydraulisNoSolvers": {"HydraulisSolversMissing"}}
"""What else fires then."""


def _series(changes: dict[str, str]) -> list[dict[str, str]]:
    series = dict(HEALTHY)
    for begins, values in changes.items():
        (name,) = (name for name in series if name.startswith((begins + "{", begins + ",")))
        series[name] = values
    return [{"series": name, "values": values} for name, values in series.items() if values]


def _firing_case(changes: dict[str, str], fires: set[str]) -> dict[str, Any]:
    """Return a case of promtool's: which of all alerts fire after three hours, and which do not."""
    asked = "count by (alertname) (ALERTS{alertstate='firing'})"
    samples = [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in sorted(fires)]
    return {
        "interval": "2m",
        "input_series": _series(changes),
        "promql_expr_test": [{"expr": asked, "eval_time": "3h", "exp_samples": samples}],
    }


def _try(folder: Path, cases: list[dict[str, Any]]) -> None:
    test = {"rule_files": [str(write_rules(folder))], "evaluation_interval": "2m", "tests": cases}
    (folder / "cases.yaml").write_text(yaml.safe_dump(test))
    promtool("test", "rules", folder / "cases.yaml")


def test_prometheus_takes_the_rules(tmp_path: Path) -> None:
    assert f"{len(rules())} rules found" in promtool("check", "rules", write_rules(tmp_path))


def test_no_alert_fires_on_a_planner_that_is_well(tmp_path: Path) -> None:
    _try(tmp_path, [_firing_case({}, set())])


def test_each_alert_fires_on_its_trouble_and_no_other_does(tmp_path: Path) -> None:
    assert TROUBLE.keys() == {rule["alert"] for rule in rules()}
    cases = [_firing_case(changes, {name, *WITH_OTHERS.get(name, ())}) for name, changes in TROUBLE.items()]
    _try(tmp_path, cases)


def test_what_promtool_is_asked_can_fail(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="HydraulisDatabaseDown"):
        _try(tmp_path, [_firing_case(TROUBLE["HydraulisDatabaseDown"], set())])


def test_alerts_ask_for_series_that_a_planner_has_from_its_start(tmp_path: Path) -> None:
    with TestClient(create_app(Settings(database=str(tmp_path / "p.sqlite3"), workers=1))) as client:
        lines = client.get("/metrics").text.splitlines()
    there = {line.split("{")[0].split(" ")[0] for line in lines if not line.startswith("#")}
    asked = set()
    for rule in rules():
        for name, labels in re.findall(r"\b((?:hydraulis|process)_[a-z_]+)(\{[^}]*\})?", rule["expr"]):
            asked.add(name)
            assert name in there, rule["alert"]
            for label in re.findall(r'\w+="[^"]+"', labels.replace('job="hydraulis-planner"', "")):
                assert any(line.startswith(name) and label in line for line in lines), (rule["alert"], label)
    assert len(asked) > 10


def test_the_series_of_the_cases_have_labels_that_the_planner_gives(tmp_path: Path) -> None:
    with TestClient(create_app(Settings(database=str(tmp_path / "p.sqlite3"), workers=1))) as client:
        text = client.get("/metrics").text
    for series in HEALTHY:
        name, _, labels = series.partition("{")
        if name == "up":
            continue
        own = {it.partition("=")[0] for it in labels.rstrip("}").split(",")} - {"job", "instance"}
        there = re.search(rf"^{name}(?:\{{(.*)\}})? ", text, re.MULTILINE)
        assert there is not None, name
        assert {it.partition("=")[0] for it in (there[1] or "").split(",") if it} == own, name


def test_the_job_that_alerts_name_is_what_prometheus_calls_the_planner() -> None:
    (service,) = of_kind(rendered("planner"), "Service")
    (monitor,) = of_kind(rendered("monitoring"), "ServiceMonitor")
    assert "jobLabel" not in monitor["spec"], "by default the job is named after the service"
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert {it["port"] for it in monitor["spec"]["endpoints"]} <= {it["name"] for it in service["spec"]["ports"]}
    named = {job for rule in rules() for job in re.findall(r'job="([^"]+)"', rule["expr"])}
    assert named == {service["metadata"]["name"]}


def test_every_alert_has_a_section_that_says_the_same_and_no_section_has_none() -> None:
    section = PAGE.partition("\n## Alerts\n")[2].partition("\n## ")[0]
    documented = dict(re.findall(r"^### (Hydraulis\w+)\n\n(.+)$", section, re.MULTILINE))
    assert documented.keys() == {rule["alert"] for rule in rules()}
    for rule in rules():
        name, holds = rule["alert"], documented[rule["alert"]]
        assert f"`{rule['expr']}`" in holds, name
        number, unit = re.fullmatch(r"(\d+)([mh])", rule.get("for", "0m")).groups()  # type: ignore[union-attr]
        said = {"m": "minute", "h": "hour"}[unit]
        assert holds.endswith(f"for {number} {said}s." if number != "1" else f"for 1 {said}.") or (
            number == "0" and holds.endswith("at once.")
        ), name
        assert rule["annotations"]["runbook"] == f"docs/operations.md#{name.lower()}"
        assert rule["annotations"]["summary"]
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
    assert len({group["name"] for group in groups()}) == len(groups())


def test_the_dashboard_in_the_cluster_is_the_one_of_the_repository() -> None:
    (board,) = of_kind(rendered("monitoring"), "ConfigMap")
    assert board["data"]["hydraulis.json"] == (ROOT / "deploy" / "grafana" / "hydraulis.json").read_text()
    assert board["metadata"]["labels"]["grafana_dashboard"] == "1"
