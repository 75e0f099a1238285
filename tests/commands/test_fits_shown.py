"""What is shown of a fit: errors, warnings, estimates, and the plot."""

import csv
import io
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import hydraulis
from contents import PROFILE

from planner_client import PlannerClient
from planner_client.contract import ProfileMeasurement

NAME = "fitted-$x_1$"


def _layout(tp: int, pp: int) -> dict[str, Any]:
    generator = np.random.default_rng([tp, pp])
    samples = []
    for number in range(60):
        lengths = [int(s) for s in np.exp(generator.uniform(np.log(16), np.log(4096), generator.integers(1, 6)))]
        exact = (5 / pp + sum(2e-6 * s * s + 0.1 * s for s in lengths) / tp / pp) * (12 if number == 7 else 1)
        time_ms = exact * float(np.exp(0.02 * generator.standard_normal()))
        samples.append({"lengths": lengths, "time_ms": time_ms, "memory_bytes": 10**9 + 200_000 * sum(lengths)})
    return {"tp": tp, "pp": pp, "samples": samples}


@pytest.fixture(scope="module")
def fitted(filled: str) -> Iterator[str]:
    """Name of a profile fitted by the planner that tests share; it goes again, so that others find what they left."""
    measurement = ProfileMeasurement.model_validate(
        {
            "name": "fitted-here",
            "source": "measured in a test",
            "model": {"name": NAME, "num_layers": 2, "hidden_size": 64, "vocab_size": 256},
            "device": {"name": "CPU", "memory_bytes": 8 * 10**9, "gpus_per_node": 2},
            "layouts": [_layout(1, 1), _layout(1, 2)],
            "estimate": [{"tp": 2, "pp": 1}],
            "collectives": [
                {"kind": "send", "num_ranks": 2, "num_bytes": size, "time_ms": 0.5 + size * 1e-6}
                for size in (1000, 100_000, 10_000_000)
            ],
        }
    )
    with PlannerClient(filled) as client:
        client.register_profile(measurement)
        yield measurement.name
        client.delete_profile(measurement.name)


pytestmark = pytest.mark.usefixtures("planner")


def test_a_fit_is_shown_with_its_errors_its_outliers_and_its_warnings(fitted: str) -> None:
    shown = hydraulis("profiles", "show", fitted)
    assert (shown.code, shown.err) == (0, "")
    tables = [[line.split() for line in part.splitlines()] for part in shown.out.split("\n\n")]
    _, coefficients, fits, *_ = tables
    assert [row[-1] for row in coefficients[1:]] == ["samples", "samples", "estimate"]
    assert [row[:3] for row in fits[1:3]] == [["(1,1)", "60", "1"], ["(1,2)", "60", "1"]]
    assert all(cell.endswith("%") for row in fits[1:] for cell in row[-3:])
    assert "(2,1)   not measured: scaled from (1,1), (1,2); measure (2,1) before you rely on it" in shown.out
    assert "sequences may have" in shown.out
    (send,) = [line.split() for line in shown.out.splitlines() if line.startswith("send")]
    assert send == ["send", "2", "0.5", "1.049", "0.0%"]


def test_a_table_of_a_fitted_profile_has_its_errors(fitted: str) -> None:
    rows = list(csv.DictReader(io.StringIO(hydraulis("profiles", "export", fitted, "--format", "csv").out)))
    assert [row["is_estimated"] for row in rows] == ["false", "false", "true"]
    assert [row["num_outliers"] for row in rows] == ["1", "1", "0"]
    assert all(0 < float(row["held_out_median_abs_pct_error"]) < 10 for row in rows)
    assert all(int(row["num_warnings"]) > 0 for row in rows)


@pytest.mark.parametrize("ending", ["svg", "png"])
def test_a_fit_is_plotted_beside_its_samples(fitted: str, tmp_path: Path, ending: str) -> None:
    file = tmp_path / f"fit.{ending}"
    done = hydraulis("profiles", "show", fitted, "--plot", str(file), "--json")
    assert done.code == 0
    assert done.err == f"wrote {file}\n"
    if ending == "png":
        assert file.read_bytes().startswith(b"\x89PNG")
        return
    texts = [element.text or "" for element in ET.fromstring(file.read_text()).iter() if element.tag.endswith("text")]  # noqa: S314 - written here
    assert any(NAME in text for text in texts)
    assert sum(text.startswith(("(1,1): R²", "(1,2): R²")) for text in texts) == 2
    assert sum("predicted (ms)" in text for text in texts) == 2


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("fit.bmp", "ends in none of .svg, .png, .pdf"),
        ("missing/fit.svg", "lies in missing, which is no directory"),
    ],
)
def test_a_plot_that_cannot_be_written_is_refused_before_anything_is_asked(file: str, said: str) -> None:
    done = hydraulis("profiles", "show", PROFILE, "--plot", file, "--url", "http://127.0.0.1:9")
    assert (done.code, done.out) == (2, "")
    assert said in done.err


def test_a_profile_without_samples_has_nothing_to_plot(tmp_path: Path) -> None:
    done = hydraulis("profiles", "show", PROFILE, "--plot", str(tmp_path / "fit.svg"))
    assert (done.code, done.out) == (2, "")
    assert f"profile {PROFILE} keeps no samples to plot" in done.err
    assert list(tmp_path.iterdir()) == []
