// A table that shows one page of a list at a time.

import { fill, h } from "./dom.js";

/**
 * A paged table.
 *
 * `columns` are `{ title, cell(row), isText }`; the first names its row. `load(after, signal)` returns
 * `{ rows, nextAfter }`. `empty` is said where there are no rows.
 */
export function pagedTable({ caption, columns, load, empty, ofRows = "entries" }) {
  const before = []; // where each page before this one began
  let after = null;
  let nextAfter = null;
  let ask = null;
  const body = h("tbody");
  const none = h("p", { class: "muted", hidden: true }, empty);
  const table = h(
    "table",
    {},
    h("caption", { class: "hidden" }, caption),
    h("thead", {}, h("tr", {}, columns.map(({ title, isText }) => h("th", { scope: "col", class: isText && "words" }, title)))),
    body,
  );
  const back = h("button", { type: "button", onclick: () => go(before.pop()) }, "Previous page");
  const on = h("button", { type: "button", onclick: () => {
    before.push(after);
    return go(nextAfter);
  } }, "Next page");
  const where = h("span", { class: "muted", role: "status" });
  const paging = h("div", { class: "paging", role: "group", "aria-label": `Pages of ${ofRows}` }, back, on, where);
  const element = h(
    "div",
    {},
    h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption }, table),
    none,
    paging,
  );

  async function go(wanted) {
    after = wanted;
    try {
      await refresh();
    } catch {
      ask?.(); // the view asks for all it shows, and says what is wrong
    }
  }

  async function refresh(signal) {
    const wanted = after;
    const answer = await load(wanted, signal);
    // A page that was asked for meanwhile is on its way.
    if (wanted === after) show(answer);
  }

  function show({ rows, nextAfter: next }) {
    nextAfter = next;
    const focused = body.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
    fill(body, rows.map((row) => h("tr", {}, columns.map(({ cell, isText }, index) =>
      index === 0 ? h("th", { scope: "row", class: isText && "words" }, cell(row)) : h("td", { class: isText && "words" }, cell(row)),
    ))));
    if (focused !== null) [...body.querySelectorAll("a")].find((link) => link.getAttribute("href") === focused)?.focus();
    none.hidden = rows.length > 0;
    table.hidden = rows.length === 0;
    back.disabled = before.length === 0;
    on.disabled = nextAfter === null;
    paging.hidden = before.length === 0 && nextAfter === null;
    where.textContent = `Page ${before.length + 1}`;
  }

  return {
    element,
    /** Show the page again as it is now. */
    refresh,
    /** Who is to look when a page could not be had. */
    onAsked(wanted) {
      ask = wanted;
    },
  };
}
