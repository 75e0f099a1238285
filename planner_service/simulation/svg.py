"""Small charts as SVG text: bars, lines, a strip of categories, and spans in rows.

Colours are the classes ``s0`` to ``s9`` of a page's style, so that a page decides how dark and light look.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH = 860
LEFT = 64
RIGHT = 12
NUM_COLOURS = 10
ROW_HEIGHT = 18


@dataclass(frozen=True)
class Series:
    """A named row of values; None where there is none."""

    name: str
    values: Sequence[float | None]


@dataclass(frozen=True)
class Box:
    """Something that lasts from ``begin`` to ``end`` in one row."""

    row: int
    begin: float
    end: float
    style: str
    hint: str


def ticks(highest: float, most: int = 5) -> list[float]:
    """Choose round values from 0 to at least ``highest``."""
    if highest <= 0 or not math.isfinite(highest):
        return [0.0, 1.0]
    raw = highest / most
    magnitude = 10.0 ** math.floor(math.log10(raw))
    step = next(step * magnitude for step in (1, 2, 2.5, 5, 10) if step * magnitude >= raw * (1 - 1e-9))
    return [index * step for index in range(math.ceil(highest / step - 1e-9) + 1)]


def number(value: float) -> str:
    """Write a value of an axis shortly."""
    if value == 0:
        return "0"
    if abs(value) >= 1e6 or abs(value) < 1e-3:
        return f"{value:.3g}"
    return f"{value:,.3f}".rstrip("0").rstrip(".")


def _svg(height: float, label: str, parts: Sequence[str]) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{escape(label, quote=True)}" '
        f'xmlns="http://www.w3.org/2000/svg">{"".join(parts)}</svg>'
    )


def _text(x: float, y: float, content: str, anchor: str = "start", style: str = "axis") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" class="{style}">{escape(content)}</text>'


def _rect(corner: tuple[float, float], size: tuple[float, float], style: str, hint: str) -> str:
    x, y = corner
    width, height = (max(length, 0.3) for length in size)
    return (
        f'<rect x="{x:.2f}" y="{y:.2f}" width="{width:.2f}" height="{height:.2f}" class="{style}">'
        f"<title>{escape(hint)}</title></rect>"
    )


def colour(index: int) -> str:
    """Class of the series number ``index``."""
    return f"s{index % NUM_COLOURS}"


def _legend(names: Sequence[str], y: float) -> tuple[list[str], float]:
    """Draw a legend that wraps; return its parts and where it ends."""
    parts = []
    x = float(LEFT)
    for index, name in enumerate(names):
        width = 22 + 7 * len(name)
        if x + width > WIDTH - RIGHT and x > LEFT:
            x, y = float(LEFT), y + 18
        parts += [f'<rect x="{x:.0f}" y="{y - 9:.0f}" width="10" height="10" class="{colour(index)}"/>']
        parts += [_text(x + 14, y, name)]
        x += width
    return parts, y + 10


@dataclass(frozen=True)
class _Frame:
    top: float
    height: float
    marks: Sequence[float]
    is_log: bool

    def y(self, value: float) -> float:
        low, high = self.marks[0], self.marks[-1]
        if self.is_log:
            low, high, value = math.log10(low), math.log10(high), math.log10(max(value, self.marks[0]))
        return self.top + self.height * (1 - (value - low) / (high - low))

    def grid(self) -> list[str]:
        parts = []
        for mark in self.marks:
            y = self.y(mark)
            parts += [f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>']
            parts += [_text(LEFT - 6, y + 4, number(mark), "end")]
        return parts


def _frame(series: Sequence[Series], top: float, *, is_log: bool) -> _Frame:
    values = [value for entry in series for value in entry.values if value is not None and math.isfinite(value)]
    if not is_log:
        return _Frame(top, 200, ticks(max(values, default=1.0)), is_log=False)
    positive = [value for value in values if value > 0] or [1.0]
    low, high = math.floor(math.log10(min(positive))), math.ceil(math.log10(max(positive)))
    return _Frame(top, 200, [10.0**exponent for exponent in range(low, max(high, low + 1) + 1)], is_log=True)


def _labels(labels: Sequence[str], step: float, y: float) -> list[str]:
    every = max(1, math.ceil(len(labels) / 20))
    return [
        _text(LEFT + (index + 0.5) * step, y, label, "middle")
        for index, label in enumerate(labels)
        if not index % every
    ]


def grouped_bars(label: str, categories: Sequence[str], series: Sequence[Series]) -> str:
    """Draw a bar for each series in each category.

    Parameters
    ----------
    label
        What the chart shows, with its unit, for those who cannot see it.
    categories
        Names along the horizontal axis.
    series
        As many values each as there are categories.
    """
    legend, top = _legend([entry.name for entry in series], 14)
    frame = _frame(series, top + 4, is_log=False)
    parts = legend + frame.grid()
    step = (WIDTH - LEFT - RIGHT) / max(1, len(categories))
    width = step * 0.84 / max(1, len(series))
    for index, entry in enumerate(series):
        for position, value in enumerate(entry.values):
            if value is not None and math.isfinite(value):
                x = LEFT + position * step + step * 0.08 + index * width
                y = frame.y(value)
                hint = f"{entry.name}, {categories[position]}: {number(value)}"
                parts.append(_rect((x, y), (width * 0.92, frame.top + frame.height - y), colour(index), hint))
    bottom = frame.top + frame.height
    return _svg(bottom + 24, label, parts + _labels(categories, step, bottom + 16))


def lines(label: str, categories: Sequence[str], series: Sequence[Series], *, is_log: bool = False) -> str:
    """Draw a line for each series over the categories; it is broken where there is no value."""
    legend, top = _legend([entry.name for entry in series], 14)
    frame = _frame(series, top + 4, is_log=is_log)
    parts = legend + frame.grid()
    step = (WIDTH - LEFT - RIGHT) / max(1, len(categories))
    for index, entry in enumerate(series):
        run: list[str] = []
        for position, value in enumerate([*entry.values, None]):
            if value is not None and math.isfinite(value):
                x, y = LEFT + (position + 0.5) * step, frame.y(value)
                run.append(f"{x:.1f},{y:.1f}")
                parts.append(
                    f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" class="{colour(index)}"><title>'
                    f"{escape(f'{entry.name}, {categories[position]}: {number(value)}')}</title></circle>"
                )
            elif run:
                parts.append(f'<polyline points="{" ".join(run)}" class="line {colour(index)}"/>')
                run = []
    bottom = frame.top + frame.height
    return _svg(bottom + 24, label, parts + _labels(categories, step, bottom + 16))


def strip(label: str, rows: Sequence[tuple[str, Sequence[str | None]]]) -> str:
    """Draw one cell for each row and position, coloured by what it holds.

    Equal contents have one colour; only the most frequent ones have a colour of their own.
    """
    frequent = Counter(cell for _, cells in rows for cell in cells if cell is not None).most_common(NUM_COLOURS)
    coloured = [content for content, _ in frequent]
    parts, top = _legend(coloured, 14)
    names = 160
    longest = max((len(cells) for _, cells in rows), default=1)
    step = (WIDTH - names - RIGHT) / max(1, longest)
    for index, (name, cells) in enumerate(rows):
        y = top + 4 + index * (ROW_HEIGHT + 4)
        parts.append(_text(names - 8, y + 13, name, "end"))
        for position, cell in enumerate(cells):
            style = "none" if cell is None else colour(coloured.index(cell)) if cell in coloured else "other"
            hint = f"{name}, iteration {position}: {cell or 'no plan'}"
            parts.append(_rect((names + position * step, y), (step - 1, ROW_HEIGHT), style, hint))
    return _svg(top + 10 + len(rows) * (ROW_HEIGHT + 4), label, parts)


def spans(label: str, rows: Sequence[str], boxes: Sequence[Box], last: float) -> str:
    """Draw boxes in rows over time.

    Parameters
    ----------
    label
        What the chart shows.
    rows
        Names of the rows, from the top.
    boxes
        What lasts how long, in seconds.
    last
        Where the time axis ends, so that charts can share it.
    """
    names = 130
    top = 8
    height = 13
    scale = (WIDTH - names - RIGHT) / last if last > 0 else 0.0
    bottom = top + height * len(rows)
    parts = []
    for mark in ticks(last):
        if mark <= last * 1.0001:
            x = names + mark * scale
            parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{bottom}" class="grid"/>')
            parts.append(_text(x, bottom + 14, f"{number(mark)} s", "middle"))
    for index, name in enumerate(rows):
        parts.append(_text(names - 8, top + index * height + 10, name, "end"))
    for box in boxes:
        y = top + box.row * height + 1
        corner, size = (names + box.begin * scale, y), ((box.end - box.begin) * scale, height - 2)
        parts.append(_rect(corner, size, box.style, box.hint))
    return _svg(bottom + 22, label, parts)
