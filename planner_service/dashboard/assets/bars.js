// Bars: loads of replicas, and lengths of sequences.

import { LEFT, RIGHT, box, grid, names, path, scaleOf } from "./axes.js";
import { cursorOver } from "./cursor.js";
import { fill, h, onWidth, s, say } from "./dom.js";
import { NONE, change, count, mark, ms, percent, plural, range } from "./format.js";
import { behind, key, legend, plainTable } from "./parts.js";

const HEIGHT = 190;
const TOP = 8;
const WIDEST = 72;

/** A chart of positions side by side, with a cursor and the figures behind it. */
function barChart({ label, unit, keys, draw, texts, tell, table }) {
  const svg = s("svg", { "aria-hidden": "true", height: HEIGHT + 24 });
  const marker = s("rect", { class: "marker", y: TOP, height: HEIGHT - TOP });
  const said = h("p", { class: "where" });
  const surface = h("div", { class: "surface" }, h("figure", {}, h("figcaption", {}, h("span", {}, unit), keys), svg));
  let step = 1;
  const length = texts.length;
  const cursor = cursorOver(surface, {
    label,
    at: (clientX) => {
      const index = Math.floor((clientX - surface.getBoundingClientRect().left - LEFT) / step);
      return index >= 0 && index < length ? index : null;
    },
    move: (index) => {
      marker.setAttribute("x", LEFT + index * step);
      const text = tell(index);
      say(said, text);
      return text;
    },
  });
  onWidth(surface, (width) => {
    step = (width - LEFT - RIGHT) / Math.max(1, length);
    svg.setAttribute("width", width);
    marker.setAttribute("width", step);
    const x = (index) => LEFT + (index + 0.5) * step;
    fill(svg, marker, draw(width, step, x), names(texts, x, HEIGHT + 18, width));
    cursor.resize(length, Math.max(0, cursor.index));
  });
  cursor.resize(length);
  cursor.show(0);
  return h("div", {}, said, surface, behind("The same as a table", table).element);
}

/** Predicted and measured times of all replicas. */
export function loadsChart(overview) {
  const { first, last, layout, makespan_ms: predicted, measured_ms: measured } = overview.replicas;
  const bound = overview.plan.lower_bound_ms;
  const hasMeasured = overview.num_measured > 0;
  const off = (index) => (predicted.highest[index] && measured.highest[index] !== null ? measured.highest[index] / predicted.highest[index] - 1 : null);
  const isMerged = overview.num_replicas > first.length;
  const name = (index) => (first[index] === last[index] ? `Replica ${count(first[index])} ${layout[index]}` : `Replicas ${range(first[index], last[index])}, from ${layout[index]}`);
  return barChart({
    label: "Replica in the chart",
    unit: `Time of ${isMerged ? "the slowest of neighbouring replicas" : "each replica"} (ms)`,
    keys: legend(key("line-0", "predicted"), hasMeasured && key("line-1", "measured"), bound !== null && key("bound", "lower bound")),
    texts: first.map((number) => `#${number}`),
    tell: (index) =>
      `${name(index)}: predicted ${ms(predicted.highest[index])}${isMerged ? `, least ${ms(predicted.lowest[index])}` : ""}, measured ${measured.highest[index] === null ? NONE : `${ms(measured.highest[index])} (${change(off(index))})`}`,
    draw: (width, step, x) => {
      const scale = scaleOf([...predicted.highest, ...measured.highest, bound], { top: TOP, height: HEIGHT - TOP });
      const thick = Math.min(WIDEST, Math.max(0.8, step * 0.72));
      const bars = predicted.highest.map((value, index) => box(x(index) - thick / 2, scale.y(value), thick, HEIGHT - scale.y(value)));
      const ticks = measured.highest.map((value, index) => (value === null ? "" : box(x(index) - thick / 2 - 1, scale.y(value) - 1.5, thick + 2, 3)));
      return [
        grid(scale, width, mark),
        s("path", { class: "fill line-0", d: bars.join("") }),
        bound !== null && s("path", { class: "line bound", d: path([bound, bound], (index) => (index ? width - RIGHT : LEFT), scale.y) }),
        s("path", { class: "fill line-1", d: ticks.join("") }),
      ];
    },
    table: () =>
      plainTable("Times of replicas", ["Replicas", "Layout", "Predicted, most", "Predicted, least", "Measured, most", "Off by"], first.map((number, index) => [
        range(number, last[index]), layout[index], ms(predicted.highest[index]), ms(predicted.lowest[index]), ms(measured.highest[index]), change(off(index)),
      ])),
  });
}

/** How many sequences of which lengths, by the layouts that run them. */
export function lengthsChart(overview) {
  const { shortest, longest, num_sequences: totals, num_tokens: tokens, layouts } = overview.lengths;
  const all = Math.max(1, overview.plan.num_tokens);
  const name = (told) => told.layout ?? "other layouts";
  const colour = (told, place) => (told.layout === null ? "rest" : `c${place}`);
  return barChart({
    label: "Lengths in the chart",
    unit: "Sequences by length (tokens)",
    keys: legend(layouts.map((told, place) => key(colour(told, place), name(told)))),
    texts: shortest.map(count),
    tell: (index) =>
      `${range(shortest[index], longest[index])} tokens: ${plural(totals[index], "sequence")}, ${percent(tokens[index] / all)} of all tokens; ${layouts
        .filter((told) => told.num_sequences[index])
        .map((told) => `${count(told.num_sequences[index])} on ${name(told)}`)
        .join(", ") || "none"}`,
    draw: (width, step, x) => {
      const scale = scaleOf(totals, { top: TOP, height: HEIGHT - TOP, leastStep: 1 });
      const thick = Math.min(WIDEST, Math.max(0.8, step * 0.8));
      const bases = totals.map(() => 0);
      return [
        grid(scale, width, mark),
        layouts.map((told, place) => {
          const bars = told.num_sequences.map((number, index) => {
            if (number === 0) return "";
            const under = scale.y(bases[index]);
            bases[index] += number;
            return box(x(index) - thick / 2, scale.y(bases[index]), thick, under - scale.y(bases[index]));
          });
          return s("path", { class: `fill ${colour(told, place)}`, d: bars.join("") });
        }),
      ];
    },
    table: () =>
      plainTable("Sequences by length", ["Length (tokens)", "Sequences", "Tokens", "Share of tokens", ...layouts.map((told) => `On ${name(told)}`)], shortest.map((least, index) => [
        range(least, longest[index]), count(totals[index]), count(tokens[index]), percent(tokens[index] / all), ...layouts.map((told) => count(told.num_sequences[index])),
      ])),
  });
}
