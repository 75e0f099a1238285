"""How charts look, and how they come to stand inside an HTML page: SVG whose colours are CSS variables."""

import io
import re
from collections.abc import Callable
from typing import Any

_CSS_COLOURS = {
    "#010101": "var(--ink)",
    "#020202": "var(--grid)",
    "#030303": "var(--plain)",
    "#040404": "var(--plain-soft)",
    "#050505": "var(--planned)",
    "#060606": "var(--planned-soft)",
    "#070707": "var(--muted)",
}
"""matplotlib knows no CSS variables: it draws with these stand-ins, which are replaced in the finished SVG."""

INK, GRID, PLAIN, PLAIN_SOFT, PLANNED, PLANNED_SOFT, MUTED = _CSS_COLOURS
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "hydraulis",
    "font.family": "sans-serif",
    "font.size": 10,
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.titlesize": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
}


def as_svg(name: str, draw: Callable[[Any], None], height: float) -> str:
    """Draw a chart as an ``<svg>`` element.

    Parameters
    ----------
    name
        Begins the ids inside, so that several charts can share a page.
    draw
        Draws on a matplotlib figure.
    height
        Of the figure (inches); all are equally wide.
    """
    import matplotlib as mpl  # noqa: PLC0415 - slow to import, and only a report needs it
    from matplotlib.figure import Figure  # noqa: PLC0415

    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(7.2, height), layout="constrained")
        draw(figure)
        written = io.StringIO()
        figure.savefig(written, format="svg", metadata={"Date": None})
    return _embeddable(written.getvalue(), name)


def _embeddable(svg: str, name: str) -> str:
    """Keep the ``<svg>`` element alone and make it live in an HTML page: own ids, CSS colours, no outside names."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<style type=\"text/css\">.*?</style>", "", svg, flags=re.DOTALL)
    svg = re.sub(r' xmlns(:xlink)?="[^"]*"', "", svg).replace("xlink:href=", "href=")
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r'href="#', f'href="#{name}-', svg)
    svg = re.sub(r"url\(#", f"url(#{name}-", svg)
    svg = re.sub(r"font-family: [^;\"]*;? ?", "", svg)
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1)
    for stand_in, variable in _CSS_COLOURS.items():
        svg = svg.replace(stand_in, variable)
    return svg
