// Pieces that several views are made of.

import { h } from "./dom.js";

export const tile = (label, value, note = null, kind = "") =>
  h("div", { class: `tile ${kind}` }, h("dt", {}, label), h("dd", {}, h("b", {}, value), note && h("span", { class: "note" }, note)));

export const tiles = (...children) => h("dl", { class: "tiles" }, children);

/** A section with a heading. */
export function card(title, ...children) {
  const id = `card-${title.toLowerCase().replaceAll(/[^a-z]+/g, "-")}`;
  return h("section", { class: "card", "aria-labelledby": id }, h("h2", { id }, title), children);
}

/** Name and value of several facts; those without a value are left out. */
export const facts = (entries) =>
  h(
    "dl",
    { class: "facts" },
    entries.filter(([, value]) => value !== null && value !== undefined).map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))),
  );

const WORDS = { planned: "planned", failed: "no plan", collecting: "collecting", due: "waits for a solver", solving: "being solved" };

export const stateBadge = (state) => h("span", { class: `badge ${state}` }, WORDS[state] ?? state);

/** A problem document: what went wrong, its code, and what to do. */
export const problemView = (problem, ...actions) =>
  h(
    "div",
    { class: "problem", role: "alert" },
    h("p", { class: "detail" }, problem.detail || problem.message || "something went wrong"),
    problem.remedy && h("p", { class: "remedy" }, `What to do: ${problem.remedy}`),
    h("p", { class: "muted" }, h("code", {}, problem.code || "error"), problem.status ? ` · HTTP ${problem.status}` : "", problem.requestId ? ` · request ${problem.requestId}` : ""),
    actions.length > 0 && h("p", { class: "actions" }, actions),
  );

/** Figures behind a chart, made when they are opened. */
export function behind(summary, makeTable) {
  const place = h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": summary });
  const details = h("details", { class: "behind", ontoggle: () => renew() }, h("summary", {}, summary), place);
  function renew() {
    if (details.open) place.replaceChildren(makeTable());
  }
  return { element: details, renew };
}

const ROWS_AT_ONCE = 80;

/**
 * A plain table of texts and nodes; the first cell of each row names it. `words` are the columns that hold prose.
 * What fits a window is there at once, the rest of a long table follows between frames, so that no key waits for it.
 */
export function plainTable(caption, head, rows, words = []) {
  const body = h("tbody", {});
  const row = ([name, ...cells]) =>
    h("tr", {}, h("th", { scope: "row" }, name), cells.map((cell, place) => h("td", { class: words.includes(head[place + 1]) && "words" }, cell)));
  function add(from) {
    body.append(...rows.slice(from, from + ROWS_AT_ONCE).map(row));
    if (from + ROWS_AT_ONCE < rows.length) setTimeout(add, 0, from + ROWS_AT_ONCE);
  }
  add(0);
  return h(
    "table",
    {},
    h("caption", {}, caption),
    h("thead", {}, h("tr", {}, head.map((title) => h("th", { scope: "col", class: words.includes(title) && "words" }, title)))),
    body,
  );
}

/** A coloured square with a name. */
export const key = (colour, ...text) => h("li", {}, h("span", { class: `swatch ${colour}`, "aria-hidden": "true" }), h("span", {}, text));
export const legend = (...entries) => h("ul", { class: "legend" }, entries);
