"""The page on concepts tells of plans that this version makes."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

DOCS = Path(__file__).parent.parent.parent / "docs"


@pytest.fixture
def pictures(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    found = importlib.util.spec_from_file_location("pictures", DOCS / "site" / "pictures.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    monkeypatch.setattr(module, "IMAGES", tmp_path)
    return module


def test_the_figures_and_pictures_of_the_page_are_those_of_plans_made_now(pictures: ModuleType, tmp_path: Path) -> None:
    figures = pictures.draw()
    rows = re.findall(r"^\| .* \| (\d+) ms \| ?([\d.]*)x? ?\| ([\d.]+) % \|$", (DOCS / "concepts.md").read_text(), re.M)
    plans = [figures[name] for name in ("plain", "balanced", "unlike")]
    assert [int(makespan) for makespan, _, _ in rows] == [round(plan["makespan_ms"]) for plan in plans]
    plain_ms = plans[0]["makespan_ms"]
    assert [ratio for _, ratio, _ in rows] == ["", *(f"{plain_ms / plan['makespan_ms']:.2f}" for plan in plans[1:])]
    assert [float(gap) for _, _, gap in rows] == [pytest.approx(100 * plan["gap"], abs=0.5) for plan in plans]
    for drawn in tmp_path.iterdir():
        assert drawn.read_text() == (DOCS / "images" / drawn.name).read_text(), drawn.name
