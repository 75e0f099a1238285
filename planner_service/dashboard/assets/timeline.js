// Pipelines over time: a row for each stage of the slowest replicas.

import { box, marks } from "./axes.js";
import { fill, h, onWidth, s, say } from "./dom.js";
import { count, mark, ms, percent, plural } from "./format.js";
import { behind, key, legend, plainTable } from "./parts.js";

const NAMES = 150;
const ROW = 17;
const TOP = 4;

/** The chart; four shades tell forward from backward, and neighbouring micro-batches apart. */
export function timelineChart(overview) {
  const line = overview.timeline;
  const byRow = line.row_name.map(() => []);
  line.row.forEach((row, index) => byRow[row].push(index));
  const bottom = TOP + ROW * line.row_name.length;
  const said = h("p", { class: "where" }, "Point at an operation to see what it is.");
  const svg = s("svg", { "aria-hidden": "true", height: bottom + 24 });
  const figure = h("figure", { class: "scroll-y", tabindex: "0", role: "group", "aria-label": "Timeline of the pipelines; the table below it has the same" }, svg);
  let scale = 1;
  onWidth(figure, (width) => {
    scale = (width - NAMES - 12) / Math.max(1e-9, line.total_ms);
    svg.setAttribute("width", width);
    const shades = new Map(["f0", "f1", "b0", "b1"].map((shade) => [shade, ""]));
    line.row.forEach((row, index) => {
      const shade = `${line.is_backward[index] ? "b" : "f"}${line.micro_batch[index] % 2}`;
      const long = Math.max(0.3, (line.end_ms[index] - line.begin_ms[index]) * scale - 0.4);
      shades.set(shade, shades.get(shade) + box(NAMES + line.begin_ms[index] * scale, TOP + row * ROW + 2, long, ROW - 4));
    });
    fill(
      svg,
      marks(0, line.total_ms, { most: 6 }).filter((time) => time <= line.total_ms).map((time) => [
        s("line", { class: "grid", x1: NAMES + time * scale, x2: NAMES + time * scale, y1: TOP, y2: bottom }),
        s("text", { class: "axis", x: NAMES + time * scale, y: bottom + 16, "text-anchor": "middle" }, `${mark(time)} ms`),
      ]),
      line.row_name.map((name, row) => s("text", { class: "axis", x: NAMES - 8, y: TOP + row * ROW + 12, "text-anchor": "end" }, name)),
      s("path", { class: "fill idle", d: line.row_name.map((_, row) => box(NAMES, TOP + row * ROW + 2, line.total_ms * scale, ROW - 4)).join("") }),
      [...shades].map(([shade, d]) => s("path", { class: `fill ${shade}`, d })),
    );
  });
  svg.addEventListener("pointermove", (event) => {
    const place = svg.getBoundingClientRect();
    const row = Math.floor((event.clientY - place.top - TOP) / ROW);
    const time = (event.clientX - place.left - NAMES) / scale;
    const found = byRow[row]?.find((index) => line.begin_ms[index] <= time && time < line.end_ms[index]);
    if (found === undefined) return;
    const pass = line.is_backward[found] ? "backward" : "forward";
    say(said, `${line.row_name[row]}: micro-batch ${count(line.micro_batch[found])}, ${pass}, from ${ms(line.begin_ms[found])} to ${ms(line.end_ms[found])}`);
  });
  const left = overview.num_replicas - overview.num_idle - line.num_replicas_shown;
  return h(
    "div",
    {},
    h("p", { class: "muted" }, `By the cost model under 1F1B.${left > 0 ? ` The slowest ${plural(line.num_replicas_shown, "replica")} of ${count(overview.num_replicas - overview.num_idle)} are drawn.` : ""}`),
    legend(key("f0", "forward"), key("b0", "backward"), key("idle", "waits")),
    said,
    figure,
    behind("The same as a table", () =>
      plainTable("Stages of the pipelines drawn", ["Stage", "Operations", "Busy", "Waits", "Ends at"], line.row_name.map((name, row) => {
        const busy = byRow[row].reduce((sum, index) => sum + line.end_ms[index] - line.begin_ms[index], 0);
        const end = byRow[row].reduce((latest, index) => Math.max(latest, line.end_ms[index]), 0);
        return [name, count(byRow[row].length), ms(busy), percent(1 - busy / Math.max(1e-9, line.total_ms)), ms(end)];
      })),
    ).element,
  );
}
