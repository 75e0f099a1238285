// One iteration: what was chosen and why, how its pipelines run, who computes what.

import { lengthsChart, loadsChart } from "./bars.js";
import { fill, h, hold, keeper } from "./dom.js";
import { NONE, change, count, iterationAddress, jobAddress, moment, ms, percent, plural } from "./format.js";
import { card, facts, plainTable, problemView, stateBadge, tile, tiles } from "./parts.js";
import { download, get, iterationPath } from "./service.js";
import { pagedTable } from "./table.js";
import { timelineChart } from "./timeline.js";

const PAGE = 25;
const MAX_POINTS = 200;
const PLAN_EVERY = 10; // a plan does not change, and its times tell by the longest; others are looked for less often

const SOLVERS = { heuristic: "the planner's own search", "cp-sat": "the solver CP-SAT", fallback: "a client without the planner" };

export function iterationPage({ job, iteration }) {
  const keep = keeper();
  let known = "";
  let overview = null;
  let candidates = null;
  let numLooks = 0;
  const table = replicaTable(job, iteration);
  const state = h("span");
  const body = h("div");
  const steps = h(
    "nav",
    { class: "steps", "aria-label": "Neighbouring iterations" },
    iteration > 0 && h("a", { href: iterationAddress(job, iteration - 1), rel: "prev" }, `← ${count(iteration - 1)}`),
    h("a", { href: iterationAddress(job, iteration + 1), rel: "next" }, `${count(iteration + 1)} →`),
  );
  return {
    title: `Iteration ${count(iteration)} of ${job}`,
    crumbs: [[job, jobAddress(job)], [`Iteration ${count(iteration)}`, iterationAddress(job, iteration)]],
    element: h("div", {}, h("div", { class: "heading" }, h("h1", {}, `Iteration ${count(iteration)}`), state, steps), body),
    onAsked: (ask) => table.onAsked(ask),
    async refresh(signal) {
      const status = await get(iterationPath(job, iteration), { signal });
      const text = JSON.stringify(status);
      numLooks += 1;
      if (text === known && numLooks % PLAN_EVERY) return;
      if (status.state === "planned") {
        // A plan does not change, and neither do the bounds of those that it was chosen over.
        [overview, candidates] = await Promise.all([
          get(`${iterationPath(job, iteration)}/overview`, { signal, query: { max_points: MAX_POINTS } }),
          candidates ?? get(`${iterationPath(job, iteration)}/candidates`, { signal }).then((told) => told.candidates),
          table.refresh(signal),
        ]);
      }
      known = text;
      hold(state, [keep("state", status.state, () => stateBadge(status.state))]);
      hold(body, overview ? planned({ job, iteration, status, overview, candidates, table, keep }) : unplanned(status, keep));
    },
  };
}

function unplanned(status, keep) {
  return [
    status.problem && keep("problem", status.problem, () => card("Why there is no plan", problemView(status.problem))),
    keep("progress", status, () => card(
      "How far it is",
      facts([
        ["Sources that reported", count(status.num_reported)],
        ["Sources missing", count(status.num_missing)],
        ["Planned without them from", status.state === "collecting" ? moment(status.due_at) : null],
        ["Times taken up by a solver", count(status.num_tries)],
        ["Finished", status.finished_at === null ? null : moment(status.finished_at)],
      ]),
      missing(status),
    )),
  ];
}

function missing({ missing: names, num_missing: number }) {
  if (number === 0) return null;
  const shown = names.slice(0, 20);
  return h("p", {}, `Without ${plural(number, "source")} that did not report in time: ${shown.join(", ")}${number > shown.length ? ` and ${count(number - shown.length)} more` : ""}.`);
}

function planned({ job, iteration, status, overview, candidates, table, keep }) {
  const { plan, replicas, lengths, timeline } = overview;
  const off = overview.measured_ms !== null && plan.makespan_ms ? overview.measured_ms / plan.makespan_ms - 1 : null;
  return [
    keep("tiles", overview.measured_ms, () => tiles(
      tile("Predicted time", ms(plan.makespan_ms), `${ms(plan.simulated_ms)} simulated`),
      tile("Measured time", ms(overview.measured_ms), off === null ? "no times came yet" : `${change(off)} against predicted`),
      tile("Lower bound", ms(plan.lower_bound_ms), plan.bound_scope === "all-strategies" ? "proven for all strategies" : plan.bound_scope ? "proven for this strategy" : "none was proven"),
      tile("Gap", percent(plan.gap), plan.status === "optimal" ? "no better plan exists within it" : "to the bound"),
      tile("Planning time", ms(plan.planning_ms), SOLVERS[plan.solved_by] ?? plan.solved_by),
      tile("Sequences", count(plan.num_sequences), `${count(plan.num_tokens)} tokens`),
    )),
    keep("chosen", [plan, status.num_missing], () => card("What was chosen, and why", reasons(overview), candidateTable(plan, candidates), moreFacts(status, overview), missing(status), downloadButton(job, iteration))),
    keep("timeline", plan.digest, () => card("Timeline", timeline.num_replicas_shown ? timelineChart(overview) : h("p", { class: "muted" }, "There is nothing to draw: all replicas are idle, or the slowest has more micro-batches than can be told apart."))),
    keep("loads", replicas, () => card("Load of each replica", loadsChart(overview))),
    keep("lengths", lengths, () => card("Lengths of the sequences", plan.num_sequences ? lengthsChart(overview) : h("p", { class: "muted" }, "There are none."))),
    keep("replicas", plan.digest, () => card("Replicas", table.element)),
  ];
}

function reasons({ plan, num_replicas: numReplicas, num_idle: numIdle }) {
  const scope = plan.bound_scope === "all-strategies" ? "any strategy that this job allows" : "this strategy";
  const lines = [
    `${plural(numReplicas, "replica")} on ${plural(plan.num_gpus, "GPU")}${numIdle ? `, ${count(numIdle)} of them idle` : ""}. The assignment was found by ${SOLVERS[plan.solved_by] ?? plan.solved_by} in ${ms(plan.planning_ms)}.`,
    plan.lower_bound_ms === null
      ? "No bound was proven, so how much better a plan could be is not known."
      : `No plan on ${scope} takes less than ${ms(plan.lower_bound_ms)}, which is proven; this one takes ${ms(plan.makespan_ms)}: ${plan.status === "optimal" ? "it cannot be beaten" : `at most ${percent(plan.gap)} could be gained`}.`,
    plan.bound_scope === "strategy" && plan.all_strategies_lower_bound_ms !== null
      ? `Over all strategies that these GPUs can form, the bound is ${ms(plan.all_strategies_lower_bound_ms)}: another one could gain at most ${percent(Math.max(0, plan.makespan_ms / plan.all_strategies_lower_bound_ms - 1))}.`
      : null,
    plan.cut_by_wall_clock ? "The deadline ended the search before its usual effort was spent." : null,
  ];
  return [h("p", { class: "chosen" }, plan.strategy), h("ul", { class: "reasons" }, lines.filter(Boolean).map((line) => h("li", {}, line)))];
}

/** Every candidate that the job names, with what it could have done at best. */
function candidateTable(plan, candidates) {
  if (candidates.length === 0) return h("p", { class: "muted" }, "The job names no candidates: all strategies that its GPUs can form were searched.");
  return [
    h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Candidate strategies" },
      plainTable("Candidate strategies of the job", ["Strategy", "No plan on it takes less than", "Against this plan", "Verdict"], candidates.map((candidate) => [
        candidate.strategy,
        ms(candidate.lower_bound_ms),
        candidate.lower_bound_ms === null || !plan.makespan_ms ? NONE : change(candidate.lower_bound_ms / plan.makespan_ms - 1),
        verdict(candidate, plan),
      ]), ["Verdict"])),
    h("p", { class: "muted" }, "Bounds of candidates not chosen are the quick ones that they are ranked by; their best plans are not kept."),
  ];
}

function verdict(candidate, plan) {
  if (candidate.is_chosen) return "chosen";
  if (candidate.lower_bound_ms === null) return candidate.reason ?? "could not be used";
  return candidate.lower_bound_ms >= plan.makespan_ms ? "cannot be faster: its bound is above this plan" : "no faster plan was found on it";
}

function moreFacts(status, { plan, num_dropped: numDropped, num_micro_batches: numMicroBatches, num_padding_tokens: numPadding }) {
  return facts([
    ["Profile", plan.profile],
    ["Method", plan.method],
    ["Micro-batches", count(numMicroBatches)],
    ["Padding", numPadding ? `${count(numPadding)} tokens` : "none"],
    ["Sequences left out", numDropped ? count(numDropped) : "none"],
    ["Synchronisation", `${ms(plan.sync_ms)} on top`],
    ["Finished", moment(status.finished_at)],
    ["Digest", h("code", {}, plan.digest)],
  ]);
}

function downloadButton(job, iteration) {
  const failure = h("div");
  async function save() {
    fill(failure);
    try {
      const address = URL.createObjectURL(await download(`${iterationPath(job, iteration)}/plan`));
      h("a", { href: address, download: `${job}-${iteration}.json` }).click();
      setTimeout(() => URL.revokeObjectURL(address), 10_000);
    } catch (problem) {
      fill(failure, problemView(problem));
    }
  }
  return h("div", {}, h("button", { type: "button", onclick: save }, "Download the plan (JSON)"), failure);
}

function replicaTable(job, iteration) {
  return pagedTable({
    caption: `Replicas of iteration ${count(iteration)}`,
    ofRows: "replicas",
    empty: "There are none.",
    columns: [
      { title: "Replica", cell: (row) => `#${row.replica}` },
      { title: "Layout", isText: true, cell: (row) => row.layout },
      { title: "Device", isText: true, cell: (row) => row.device },
      { title: "Ranks", isText: true, cell: (row) => row.ranks },
      { title: "Sequences", cell: (row) => count(row.num_sequences) },
      { title: "Tokens", cell: (row) => count(row.num_tokens) },
      { title: "Micro-batches", cell: (row) => count(row.num_micro_batches) },
      { title: "Most tokens", cell: (row) => count(row.max_tokens) },
      { title: "Predicted", cell: (row) => ms(row.makespan_ms) },
      { title: "Measured", cell: (row) => ms(row.measured_ms) },
      { title: "Off by", cell: (row) => (row.makespan_ms && row.measured_ms !== null ? change(row.measured_ms / row.makespan_ms - 1) : NONE) },
    ],
    load: async (after, signal) => {
      const listed = await get(`${iterationPath(job, iteration)}/replicas`, { signal, query: { limit: PAGE, after } });
      return { rows: listed.replicas, nextAfter: listed.next_after };
    },
  });
}
