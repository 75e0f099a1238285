"""Variables that manifests and images set are read by something, and hold what it takes."""

import re
from pathlib import Path

import pytest
from rendered import EVERYTHING, ROOT, containers, pods, rendered

from planner_service.settings import Settings

DOCKERFILE = (ROOT / "Dockerfile").read_text()
IN_CLUSTERS = ("PLANNER_URL", "CHECKPOINTS", "MASTER_ADDR")
"""What the example's script reads, and what the example's own command line names."""


def read_by_the_planner() -> set[str]:
    return {f"HYDRAULIS_{name.upper()}" for name in Settings.model_fields}


def read_by_agents_and_trainers() -> set[str]:
    named: set[str] = set()
    for folder in ("worker_agent", "client"):
        for path in (ROOT / folder).rglob("*.py"):
            named.update(re.findall(r"(?:envvar=|environ(?:\.get\(|\[))\s*\"(HYDRAULIS_\w+)\"", path.read_text()))
    return named


def variables(name: str) -> dict[str, dict[str, str | None]]:
    """Return what each container of a rendering sets: value, or None where it is a reference."""
    return {
        container["name"]: {it["name"]: it.get("value") for it in container.get("env", ())}
        for pod in pods(rendered(name))
        for container in containers(pod)
    }


@pytest.mark.parametrize("name", [name for name in EVERYTHING if name.startswith("planner")])
def test_every_variable_of_a_planner_is_a_setting_and_has_a_value_that_it_takes(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (of_planner,) = variables(name).values()
    assert of_planner
    assert of_planner.keys() <= read_by_the_planner()
    for variable, value in of_planner.items():
        if value is not None:
            monkeypatch.setenv(variable, value)
    settings = Settings()
    assert settings.auth == "tokens"
    assert settings.workers == int(of_planner["HYDRAULIS_WORKERS"] or 0)


@pytest.mark.parametrize("name", ["agent", "examples/indexed-job", "examples/jobset", "examples/pytorchjob"])
def test_every_variable_of_agents_and_trainers_is_read_by_them(name: str) -> None:
    for container, of_it in variables(name).items():
        assert of_it.keys() <= {*read_by_agents_and_trainers(), *IN_CLUSTERS}, container
    script = (ROOT / "docs" / "examples" / "train.py").read_text()
    assert all(f'"{name}"' in script for name in ("PLANNER_URL", "CHECKPOINTS"))


def test_what_reads_variables_is_found_where_it_is() -> None:
    assert {"HYDRAULIS_DATABASE", "HYDRAULIS_WORKERS"} <= read_by_the_planner()
    assert {"HYDRAULIS_PLANNER_URL", "HYDRAULIS_NODE", "HYDRAULIS_TOKEN"} <= read_by_agents_and_trainers()


def test_every_variable_of_the_images_is_a_setting() -> None:
    named = set(re.findall(r"^(?:ENV|\s+)\s*(HYDRAULIS_\w+)=", DOCKERFILE, re.MULTILINE))
    assert named
    assert named <= read_by_the_planner()


def test_mounted_files_and_folders_that_variables_name_are_mounted() -> None:
    for name in EVERYTHING:
        for pod in pods(rendered(name)):
            for container in containers(pod):
                mounted = [Path(it["mountPath"]) for it in container.get("volumeMounts", ())]
                for variable in container.get("env", ()):
                    path = Path(variable.get("value", ""))
                    if path.is_absolute():
                        assert any(path.is_relative_to(folder) for folder in mounted), (name, variable)


def test_the_solvers_of_a_planner_fit_into_the_memory_it_may_use() -> None:
    (pod,) = pods(rendered("planner"))
    (container,) = pod.template["spec"]["containers"]
    sizes = {it["name"]: it.get("value") for it in container["env"]}
    limit = container["resources"]["limits"]["memory"]
    assert limit.endswith("Gi")
    solvers_bytes = int(sizes["HYDRAULIS_WORKERS"]) * int(sizes["HYDRAULIS_MAX_SOLVER_BYTES"])
    assert solvers_bytes + 2**30 <= int(limit.removesuffix("Gi")) * 2**30, "1 GiB is for the server itself"
    assert container["resources"]["requests"]["cpu"] == sizes["HYDRAULIS_WORKERS"], "a CPU for each solver"
