// A job over its iterations: four charts under one cursor.

import { LEFT, RIGHT, band, box, grid, names, path, scaleOf } from "./axes.js";
import { cursorOver } from "./cursor.js";
import { fill, h, onWidth, s, say } from "./dom.js";
import { NONE, change, count, mark, ms, percent, plural, range } from "./format.js";
import { behind, key, legend, plainTable } from "./parts.js";

const HEIGHT = 132;
const STRIP_HEIGHT = 54;
const TOP = 8;

const figures = [
  { title: "Time of an iteration", unit: "ms", lines: [["makespan_ms", "predicted", "line-0"], ["measured_ms", "measured", "line-1"]], text: mark, mayStartHigher: true },
  { title: "Gap to the proven bound", unit: "%", lines: [["gap", "gap", "line-2"]], text: (value) => mark(100 * value) },
  { title: "Planning time", unit: "ms", lines: [["planning_ms", "planning time", "line-3"]], text: mark, mayBeLogarithmic: true },
];

/** Difference of measured and predicted time where both are known. */
const off = (series, index) => {
  const predicted = series.makespan_ms.mean[index];
  const measured = series.measured_ms.mean[index];
  return predicted && measured !== null ? measured / predicted - 1 : null;
};

function mostFrequent(series, index) {
  const there = series.strategies.filter((told) => told.counts[index] > 0).sort((one, two) => two.counts[index] - one.counts[index]);
  if (there.length === 0) return NONE;
  const name = there[0].strategy ?? "a rarer strategy";
  return there.length === 1 ? name : `${name} and ${there.length - 1} more`;
}

const pointName = (series, index) =>
  `${series.first[index] === series.last[index] ? "Iteration" : "Iterations"} ${range(series.first[index], series.last[index])}`;

function valuesOf(series, index) {
  const without = series.num_failed[index] ? `, ${count(series.num_failed[index])} without a plan` : "";
  const open = series.num_open[index] ? `, ${count(series.num_open[index])} unfinished` : "";
  return [
    ["Predicted", ms(series.makespan_ms.mean[index])],
    ["Measured", series.measured_ms.mean[index] === null ? NONE : `${ms(series.measured_ms.mean[index])} (${change(off(series, index))})`],
    ["Gap", percent(series.gap.mean[index])],
    ["Planned in", ms(series.planning_ms.mean[index])],
    ["Strategy", `${mostFrequent(series, index)}${without}${open}`],
  ];
}

/** The charts; `onOpen(first, last)` is called for the point that the cursor is at. */
export function seriesCharts({ onOpen }) {
  let series = null;
  let step = 1;
  const x = (index) => LEFT + (index + 0.5) * step;
  const where = h("strong");
  const shown = h("dl", { class: "readout" });
  const plots = figures.map(() => s("svg", { "aria-hidden": "true", height: HEIGHT + 24 }));
  const strip = s("svg", { "aria-hidden": "true", height: STRIP_HEIGHT + 24 });
  const cursors = [...plots, strip].map(() => s("line", { class: "cursor", y1: TOP, y2: HEIGHT }));
  const strategyLegend = h("div");
  const surface = h(
    "div",
    { class: "surface" },
    figures.map(({ title, unit, lines }, place) =>
      h("figure", {}, h("figcaption", {}, h("span", {}, `${title} (${unit})`), lines.length > 1 && legend(lines.map(([, name, colour]) => key(colour, name)))), plots[place]),
    ),
    h("figure", {}, h("figcaption", {}, h("span", {}, "Strategy")), strip),
  );
  const cursor = cursorOver(surface, {
    label: "Iteration in the charts; Enter opens it",
    at: (clientX) => {
      const index = Math.floor((clientX - surface.getBoundingClientRect().left - LEFT) / step);
      return series && index >= 0 && index < series.first.length ? index : null;
    },
    move: (index) => {
      for (const line of cursors) {
        line.setAttribute("x1", x(index));
        line.setAttribute("x2", x(index));
      }
      const values = valuesOf(series, index);
      say(where, pointName(series, index));
      fill(shown, values.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
      return `${pointName(series, index)}: ${values.map(([name, value]) => `${name.toLowerCase()} ${value}`).join(", ")}`;
    },
    open: (index) => onOpen(series.first[index], series.last[index]),
  });
  const table = behind("The same as a table", () => tableOf(series));
  const redraw = onWidth(surface, (width) => series && draw(width));

  function draw(width) {
    step = (width - LEFT - RIGHT) / Math.max(1, series.first.length);
    const texts = series.first.map((first) => count(first));
    figures.forEach((figure, place) => {
      plots[place].setAttribute("width", width);
      fill(plots[place], drawn(figure, width), names(texts, x, HEIGHT + 18, width), cursors[place]);
    });
    strip.setAttribute("width", width);
    fill(strip, stripOf(series, step), names(texts, x, STRIP_HEIGHT + 18, width), cursors[figures.length]);
    cursors[figures.length].setAttribute("y2", STRIP_HEIGHT);
    cursor.resize(series.first.length);
  }

  function drawn({ lines, text, mayStartHigher, mayBeLogarithmic }, width) {
    const spreads = lines.map(([name]) => series[name]);
    const values = spreads.flatMap((spread) => [...spread.lowest, ...spread.highest]);
    const scale = scaleOf(values, { top: TOP, height: HEIGHT - TOP, mayStartHigher, mayBeLogarithmic });
    const isMerged = series.num_read > series.first.length;
    return [
      grid(scale, width, text),
      lines.map(([, , colour], place) => [
        isMerged && s("path", { class: `band ${colour}`, d: band(spreads[place].lowest, spreads[place].highest, x, scale.y) }),
        s("path", { class: `line ${colour}`, d: path(spreads[place].mean, x, scale.y) }),
      ]),
    ];
  }

  return {
    element: h("div", { class: "charts" }, h("p", { class: "where" }, where), shown, surface, strategyLegend, table.element),
    update(newSeries) {
      const at = series && cursor.index >= 0 && !cursor.isAtEnd ? series.first[cursor.index] : null;
      series = newSeries;
      fill(strategyLegend, legendOf(series));
      redraw();
      if (at !== null) {
        const found = series.last.findIndex((last) => last >= at);
        if (found >= 0) cursor.show(found);
      }
      table.renew();
    },
  };
}

/** Shares of strategies, point by point; what has no plan stands above. */
function stripOf(series, step) {
  const parts = [
    ...series.strategies.map((told, place) => [told.strategy === null ? "rest" : `c${place}`, told.counts]),
    ["failed", series.num_failed],
    ["open", series.num_open],
  ];
  const bases = series.first.map(() => 0);
  const totals = series.first.map((_, index) => parts.reduce((sum, [, counts]) => sum + counts[index], 0));
  return parts.map(([colour, counts]) => {
    let d = "";
    for (let index = 0; index < counts.length; index += 1) {
      if (counts[index] === 0) continue;
      const isWhole = counts[index] === totals[index];
      let end = index;
      while (isWhole && counts[end + 1] > 0 && counts[end + 1] === totals[end + 1]) end += 1;
      const height = ((STRIP_HEIGHT - TOP) * counts[index]) / totals[index];
      d += box(LEFT + index * step, STRIP_HEIGHT - bases[index] - height, (end - index + 1) * step + 0.3, height);
      if (!isWhole) bases[index] += height;
      index = end;
    }
    return d && s("path", { class: `fill ${colour}`, d });
  });
}

function legendOf(series) {
  const sum = (counts) => counts.reduce((total, number) => total + number, 0);
  const entries = series.strategies.map((told, place) =>
    key(told.strategy === null ? "rest" : `c${place}`, told.strategy ?? plural(series.num_strategies - place, "rarer strategy", "rarer strategies"), h("span", { class: "muted" }, ` ${count(sum(told.counts))}×`)),
  );
  if (sum(series.num_failed)) entries.push(key("failed", "no plan", h("span", { class: "muted" }, ` ${count(sum(series.num_failed))}×`)));
  if (sum(series.num_open)) entries.push(key("open", "unfinished", h("span", { class: "muted" }, ` ${count(sum(series.num_open))}×`)));
  return legend(entries);
}

const tableOf = (series) =>
  plainTable(
    `${plural(series.num_read, "iteration")}, means of each row`,
    ["Iterations", "Predicted", "Measured", "Off by", "Gap", "Planned in", "Strategy", "No plan", "Unfinished"],
    series.first.map((first, index) => [
      range(first, series.last[index]),
      ms(series.makespan_ms.mean[index]),
      ms(series.measured_ms.mean[index]),
      change(off(series, index)),
      percent(series.gap.mean[index]),
      ms(series.planning_ms.mean[index]),
      mostFrequent(series, index),
      count(series.num_failed[index]),
      count(series.num_open[index]),
    ]),
  );
