import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
pytestmark = pytest.mark.timeout(900)

ASKING = ("jobs", "iterations", "plans", "profiles", "nodes")
"""Commands that ask a service, which any extra brings."""

PARTS = {
    # extra: (what imports, what must not be there, what `hydraulis --help` offers beside the commands that ask)
    "": (
        ["planner_client", "planner_client.client", "planner_client.sequences"],
        ["torch", "ortools", "fastapi"],
        None,
    ),
    "service": (["planner_service.translate", "planner_service.api.app"], ["torch", "matplotlib", "pytest"], "serve"),
    "agent": (
        ["worker_agent.executor.runner", "worker_agent.profiler"],
        ["ortools", "fastapi", "sqlalchemy"],
        "profile",
    ),
    "dev": (["planner_client.contract", "hypothesis"], ["torch", "ortools"], "plan"),
}


def _run(*command: str | Path, timeout: int = 600) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        env=environment,
        cwd="/",
    )


def _build(tree: Path, out: Path) -> Path:
    built = _run(sys.executable, "-m", "build", "--wheel", "--outdir", out, tree)
    assert built.returncode == 0, built.stdout + built.stderr
    (found,) = out.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _build(ROOT, tmp_path_factory.mktemp("wheel"))


def test_the_same_files_elsewhere_and_at_another_time_give_the_same_wheel_byte_for_byte(
    wheel: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    for name in ("planner_service", "client", "worker_agent"):
        shutil.copytree(ROOT / name, copy / name, copy_function=shutil.copyfile)
    for name in ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "constraints.txt", ".gitignore"):
        shutil.copyfile(ROOT / name, copy / name)
    assert _build(copy, tmp_path / "out").read_bytes() == wheel.read_bytes()


def _venv_with(folder: Path, *requirements: str | Path) -> Path:
    """Make an environment that holds these packages at the pinned versions and nothing else; return its Python.

    Nothing is compiled beforehand: a few modules of the thousands that torch has are imported.
    """
    made = _run(sys.executable, "-m", "venv", "--without-pip", folder)
    assert made.returncode == 0, made.stderr
    python = folder / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check")
    pins = ("--constraint", ROOT / "constraints.txt")
    installed = _run(*pip, "install", "--quiet", "--no-compile", *pins, *requirements)
    assert installed.returncode == 0, installed.stderr
    return python


@pytest.mark.parametrize("extra", PARTS)
def test_the_wheel_installs_and_works_alone_with_each_extra(extra: str, wheel: Path, tmp_path: Path) -> None:
    imports, absent, command = PARTS[extra]
    python = _venv_with(tmp_path / "venv", f"{wheel}[{extra}]" if extra else str(wheel))
    check = (
        f"import importlib, importlib.util, sys\n"
        f"for name in {imports}: importlib.import_module(name)\n"
        f"there = [name for name in {absent} if importlib.util.find_spec(name)]\n"
        f"sys.exit(f'not wanted here: {{there}}' if there else 0)"
    )
    imported = _run(python, "-c", check)
    assert imported.returncode == 0, imported.stderr
    hydraulis = python.parent / "hydraulis"
    shown = _run(hydraulis, "--help")
    if command is not None:
        assert shown.returncode == 0, shown.stderr
        for offered in (command, *ASKING):
            assert f" {offered} " in shown.stdout
        _ask_nobody(hydraulis)
    else:
        for said in (shown, _run(hydraulis, "jobs", "list")):
            assert said.returncode != 0
            assert "hydraulis-planner[service]" in said.stderr
            assert "either brings what looks at a service (jobs, iterations, plans, profiles)" in said.stderr


def _ask_nobody(hydraulis: Path) -> None:
    """Run the commands that ask a service up to where one would answer, and what prints tables."""
    for group in ASKING:
        arguments = ("list", "run-1") if group == "iterations" else ("list",)
        asked = _run(hydraulis, group, *arguments, "--url", "http://127.0.0.1:9", "--timeout", "5")
        assert asked.returncode == 1, asked.stderr
        assert "Connection refused" in asked.stderr
        assert "Traceback" not in asked.stderr
    looked = _run(hydraulis, "doctor", "--offline", "--json")
    assert looked.returncode == 0, looked.stdout + looked.stderr
    assert _run(hydraulis, "version", "--json").returncode == 0
    printing = "from planner_client.commands.shown import print_table; print_table(['a'], [['b']])"
    printed = _run(hydraulis.parent / "python", "-c", printing)
    assert (printed.returncode, printed.stdout) == (0, "a\nb\n"), printed.stderr


def test_a_command_whose_extra_is_missing_says_what_to_install(wheel: Path, tmp_path: Path) -> None:
    python = _venv_with(tmp_path / "venv", wheel, "typer")
    for command, extra in (("plan", "service"), ("demo", "agent")):
        said = _run(python.parent / "hydraulis", command)
        assert said.returncode != 0
        assert f"hydraulis-planner[{extra}]" in said.stderr, said.stderr
        assert "Traceback" not in said.stderr
    _ask_nobody(python.parent / "hydraulis")
