// One job: its figures over the iterations, and the iterations themselves.

import { fill, h, say } from "./dom.js";
import { NONE, change, count, iterationAddress, jobAddress, moment, ms, percent, plural, range } from "./format.js";
import { card, facts, stateBadge, tile, tiles } from "./parts.js";
import { seriesCharts } from "./series_charts.js";
import { get, jobPath } from "./service.js";
import { pagedTable } from "./table.js";

const PAGE = 25;
const LIMITS = [100, 1000, 10_000, 20_000];
const MAX_POINTS = 400;

export function jobPage({ job, query }) {
  const wanted = Number(query.get("limit"));
  let limit = Number.isInteger(wanted) && wanted >= 1 && wanted <= LIMITS.at(-1) ? wanted : 10_000;
  let before = /^\d+$/.test(query.get("before") ?? "") ? Number(query.get("before")) : null;
  let ask = null;
  let spec = null;
  let drawn = "";

  const charts = seriesCharts({
    onOpen: (first, last) => {
      if (first === last) location.hash = iterationAddress(job, first);
      else look(last - first + 1, last + 1);
    },
  });
  const figures = h("div");
  const about = h("div");
  const shown = h("span", { class: "muted", role: "status" });
  const size = h("select", { id: "limit", onchange: () => look(Number(size.value), before) });
  const older = h("button", { type: "button", onclick: () => look(limit, Number(older.dataset.before)) }, "Older");
  const newest = h("button", { type: "button", onclick: () => look(limit, null) }, "Newest");
  const table = iterationTable(job);

  /** Look at other iterations; the address follows, so that it can be shared. */
  function look(newLimit, newBefore) {
    limit = newLimit;
    before = newBefore;
    const text = new URLSearchParams({ limit, ...(before === null ? {} : { before }) });
    history.replaceState(null, "", `${jobAddress(job)}?${text}`);
    ask?.();
  }

  function showWindow(series) {
    const sizes = [...new Set([...LIMITS, limit])].sort((one, two) => one - two);
    fill(size, sizes.map((each) => h("option", { value: each, selected: each === limit }, plural(each, "iteration"))));
    older.disabled = !series.has_older;
    older.dataset.before = series.first[0] ?? 0;
    newest.disabled = before === null;
    say(shown, series.num_read ? `${range(series.first[0], series.last.at(-1))} of ${plural(series.num_iterations, "iteration")}` : "no iteration yet");
  }

  const element = h(
    "div",
    {},
    h("h1", {}, job),
    about,
    figures,
    card("Over the iterations", h("div", { class: "toolbar" }, h("label", { class: "control" }, "At most ", size), older, newest, shown), charts.element),
    card("Iterations", table.element),
  );
  return {
    title: job,
    crumbs: [[job, jobAddress(job)]],
    element,
    onAsked(newAsk) {
      ask = newAsk;
      table.onAsked(newAsk);
    },
    async refresh(signal) {
      const [series] = await Promise.all([
        get(`${jobPath(job)}/series`, { signal, query: { limit, before, max_points: MAX_POINTS } }),
        table.refresh(signal),
        spec ?? get(jobPath(job), { signal }).then((told) => {
          spec = told;
          fill(about, aboutJob(told));
        }),
      ]);
      const text = JSON.stringify(series);
      if (text === drawn) return;
      drawn = text;
      showWindow(series);
      fill(figures, tilesOf(series));
      charts.update(series);
    },
  };
}

function mean(values, weights) {
  let sum = 0;
  let total = 0;
  values.forEach((value, index) => {
    if (value === null) return;
    sum += value * weights[index];
    total += weights[index];
  });
  return total ? sum / total : null;
}

function tilesOf(series) {
  const sum = (counts) => counts.reduce((total, number) => total + number, 0);
  const weights = series.num_planned;
  const both = series.measured_ms.mean.map((measured, index) => (measured !== null && series.makespan_ms.mean[index] ? measured / series.makespan_ms.mean[index] - 1 : null));
  const off = mean(both, weights);
  const failed = sum(series.num_failed);
  return tiles(
    tile("Iterations shown", count(series.num_read), `${count(sum(series.num_planned))} planned`),
    tile("Predicted time", ms(mean(series.makespan_ms.mean, weights)), "mean of an iteration"),
    tile("Measured", off === null ? NONE : change(off), off === null ? "no times came yet" : "against predicted, mean"),
    tile("Gap", percent(mean(series.gap.mean, weights)), "mean, to the proven bound"),
    tile("Planning time", ms(mean(series.planning_ms.mean, weights)), "mean of a plan"),
    tile("Strategies", count(series.num_strategies), "different ones"),
    tile("Without a plan", count(failed), `${count(sum(series.num_open))} unfinished`, failed ? "bad" : ""),
  );
}

function aboutJob({ profiles, num_gpus: numGpus, num_sources: numSources, created_at: createdAt, spec }) {
  const options = spec.options ?? {};
  return facts([
    ["Profile", profiles],
    ["GPUs", count(numGpus)],
    ["Sources", count(numSources)],
    ["Strategies", spec.strategies.length ? `the best of ${plural(spec.strategies.length, "candidate")}` : "all that the GPUs can form"],
    ["Target gap", options.target_gap === undefined ? null : percent(options.target_gap)],
    ["Deadline of a plan", ms(options.deadline_ms)],
    ["Registered", moment(createdAt)],
  ]);
}

function iterationTable(job) {
  return pagedTable({
    caption: `Iterations of ${job}, newest first`,
    ofRows: "iterations",
    empty: "Nobody has reported an iteration yet.",
    columns: [
      { title: "Iteration", cell: (row) => h("a", { href: iterationAddress(job, row.iteration) }, count(row.iteration)) },
      { title: "State", isText: true, cell: (row) => [stateBadge(row.state), row.code ? h("code", { class: "muted" }, ` ${row.code}`) : ""] },
      { title: "Predicted", cell: (row) => ms(row.makespan_ms) },
      { title: "Measured", cell: (row) => ms(row.measured_ms) },
      { title: "Off by", cell: (row) => (row.makespan_ms && row.measured_ms !== null ? change(row.measured_ms / row.makespan_ms - 1) : NONE) },
      { title: "Gap", cell: (row) => percent(row.gap) },
      { title: "Planned in", cell: (row) => ms(row.planning_ms) },
      { title: "Strategy", isText: true, cell: (row) => row.strategy ?? NONE },
      { title: "Finished", cell: (row) => moment(row.finished_at) },
    ],
    load: async (after, signal) => {
      const listed = await get(`${jobPath(job)}/iterations`, { signal, query: { newest_first: true, limit: PAGE, after } });
      return { rows: listed.iterations, nextAfter: listed.next_after };
    },
  });
}
