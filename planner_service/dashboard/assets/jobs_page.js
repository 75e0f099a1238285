// All jobs.

import { fill, h } from "./dom.js";
import { count, jobAddress, moment, plural } from "./format.js";
import { tile, tiles } from "./parts.js";
import { get } from "./service.js";
import { pagedTable } from "./table.js";

const PAGE = 50;

export function jobsPage() {
  let jobs = [];
  const figures = h("div");
  const table = pagedTable({
    caption: "Jobs",
    ofRows: "jobs",
    empty: "No job is registered, or none that your token is good for. A trainer registers its job by itself; by hand it is POST /v1/jobs.",
    columns: [
      { title: "Job", isText: true, cell: (job) => h("a", { href: jobAddress(job.name) }, job.name) },
      { title: "Profile", isText: true, cell: (job) => job.profiles },
      { title: "GPUs", cell: (job) => count(job.num_gpus) },
      { title: "Sources", cell: (job) => count(job.num_sources) },
      { title: "Last iteration", cell: (job) => count(job.last_iteration) },
      { title: "Planned", cell: (job) => count(job.num_planned) },
      { title: "No plan", cell: (job) => h("span", { class: job.num_failed ? "bad" : "" }, count(job.num_failed)) },
      { title: "Unfinished", cell: (job) => count(job.num_iterations - job.num_planned - job.num_failed) },
      { title: "Registered", cell: (job) => moment(job.created_at) },
    ],
    load: async (after, signal) => {
      const listed = await get("v1/jobs", { signal, query: { limit: PAGE, after } });
      jobs = listed.jobs;
      return { rows: listed.jobs, nextAfter: listed.next_after };
    },
  });
  return {
    title: "Jobs",
    crumbs: [],
    element: h("div", {}, h("h1", {}, "Jobs"), figures, h("section", { class: "card", "aria-label": "Jobs" }, table.element)),
    onAsked: (ask) => table.onAsked(ask),
    async refresh(signal) {
      const [service] = await Promise.all([readiness(signal), table.refresh(signal)]);
      const sum = (number) => jobs.reduce((total, job) => total + number(job), 0);
      const failed = sum((job) => job.num_failed);
      fill(figures, tiles(
        service,
        tile("Jobs", count(jobs.length), "shown here"),
        tile("Iterations planned", count(sum((job) => job.num_planned)), "of these jobs"),
        tile("Unfinished", count(sum((job) => job.num_iterations - job.num_planned - job.num_failed)), "collecting, waiting or being solved"),
        tile("Without a plan", count(failed), "of these jobs", failed ? "bad" : ""),
      ));
    },
  };
}

/** Whether the service can plan, which it tells everybody. */
async function readiness(signal) {
  try {
    const { num_solvers: numSolvers } = await get("readyz", { signal });
    return tile("Service", "Ready", `${plural(numSolvers, "solver")} warm`);
  } catch (problem) {
    if (signal.aborted) throw problem;
    return tile("Service", "Not ready", problem.detail, "bad");
  }
}
