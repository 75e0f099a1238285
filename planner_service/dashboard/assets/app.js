// The page: which view is shown, who may see it, and whether it is up to date.

import { fill, h, say } from "./dom.js";
import { plural } from "./format.js";
import { iterationPage } from "./iteration_page.js";
import { jobPage } from "./job_page.js";
import { jobsPage } from "./jobs_page.js";
import { keepFresh } from "./live.js";
import { problemView } from "./parts.js";
import { themeSwitch } from "./theme.js";
import { forgetToken, keepToken, token } from "./token.js";

const NAME = "Hydraulis Planner";
const SHOWN = "shown-data";
const main = document.getElementById("main");
const crumbs = document.getElementById("crumbs");
const status = document.getElementById("status");
const controls = document.getElementById("controls");

let live = null;

/** Note when a view first held its data, for whoever measures the page. */
function markShown() {
  if (performance.getEntriesByName(SHOWN).length === 0) requestAnimationFrame(() => performance.mark(SHOWN));
}

/** Read which view an address asks for; null if none. */
function viewOf(hash) {
  const [path, query = ""] = hash.replace(/^#/, "").split("?");
  const parts = path.split("/").filter(Boolean);
  try {
    const job = parts.length > 1 ? decodeURIComponent(parts[1]) : null;
    if (parts.length === 0) return jobsPage();
    if (parts[0] !== "jobs") return null;
    if (parts.length === 1) return jobsPage();
    if (parts.length === 2) return jobPage({ job, query: new URLSearchParams(query) });
    if (parts.length === 4 && parts[2] === "iterations" && /^\d{1,16}$/.test(parts[3])) return iterationPage({ job, iteration: Number(parts[3]) });
  } catch {
    // what is written in the address cannot be read
  }
  return null;
}

function showCrumbs(view) {
  const steps = [["Jobs", "#/"], ...view.crumbs];
  fill(crumbs, h("ol", {}, steps.map(([text, address], index) =>
    h("li", {}, h("a", { href: address, "aria-current": index === steps.length - 1 && "page" }, text)),
  )));
}

function setStatus(kind, text) {
  status.dataset.kind = kind;
  say(status, text);
}

function showControls() {
  fill(
    controls,
    token() !== null && h("button", { type: "button", onclick: () => {
      forgetToken();
      open({ keepsFocus: true });
    } }, "Forget the token"),
    themeSwitch(),
  );
}

/** Ask for a token, and say why. */
function askForToken(problem) {
  document.title = `Token · ${NAME}`;
  setStatus("failed", "Signed out");
  const secret = h("input", { id: "token", type: "password", autocomplete: "off", spellcheck: "false", required: true, "aria-describedby": "token-note" });
  const form = h(
    "form",
    {
      class: "card token",
      onsubmit: (event) => {
        event.preventDefault();
        keepToken(secret.value.trim());
        open({ keepsFocus: true });
      },
    },
    h("h1", {}, "This service asks for a token"),
    problemView(problem),
    h("label", { for: "token" }, "Token"),
    h("p", { class: "row" }, secret, h("button", { type: "submit", class: "main" }, "Go on")),
    h("p", { id: "token-note", class: "muted" }, "It is kept until this tab is closed, sent to this service alone, and never part of an address. ", h("code", {}, "hydraulis tokens create --scope read"), " makes one."),
  );
  forgetToken();
  showControls();
  fill(main, form);
  secret.focus();
}

/** Say what went wrong above what was shown before, or in its place if that may not be seen. */
function showProblem(view, notice, problem) {
  const refused = problem.status === 403;
  const another = h("button", { type: "button", onclick: () => askForToken(problem) }, "Use another token");
  fill(notice, problemView(problem, ...(refused ? [another] : [])));
  if (refused) {
    fill(main, h("h1", {}, view.title), notice);
    setStatus("failed", "Not allowed");
  }
}

function open({ keepsFocus = false } = {}) {
  live?.stop();
  showControls();
  const view = viewOf(location.hash);
  if (view === null) {
    document.title = `Not found · ${NAME}`;
    fill(crumbs);
    setStatus("", "");
    fill(main, h("h1", {}, "There is nothing at this address"), h("p", {}, h("a", { href: "#/" }, "All jobs")));
    return;
  }
  document.title = `${view.title} · ${NAME}`;
  showCrumbs(view);
  const notice = h("div");
  view.element.hidden = true;
  const loading = h("p", { class: "muted" }, "Loading…");
  fill(main, notice, loading, view.element);
  setStatus("", "Loading");
  live = keepFresh(
    async (signal) => {
      await view.refresh(signal);
      if (signal.aborted) return;
      loading.remove();
      view.element.hidden = false;
      fill(notice);
      markShown();
    },
    ({ state, problem, retryMs }) => {
      if (state === "live") setStatus("live", "Live");
      else if (state === "paused") setStatus("paused", "Paused");
      else if (problem.needsToken) {
        live?.stop();
        askForToken(problem);
      } else {
        loading.remove();
        setStatus("failed", `Not up to date; asks again in ${plural(Math.round(retryMs / 1000), "second")}`);
        showProblem(view, notice, problem);
      }
    },
  );
  view.onAsked?.(live.now);
  if (!keepsFocus) main.focus({ preventScroll: true });
  if (!keepsFocus) window.scrollTo(0, 0);
}

// The address's part behind the `#` is that of the view, so the link to the content goes there by itself.
document.getElementById("skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});

window.addEventListener("hashchange", () => open());

open({ keepsFocus: true });
