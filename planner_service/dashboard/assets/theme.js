// Light, dark, or as the system has it.

import { h } from "./dom.js";

const KEY = "hydraulis.theme";
const CHOICES = [["auto", "Auto"], ["light", "Light"], ["dark", "Dark"]];

function remembered() {
  try {
    const choice = window.localStorage.getItem(KEY);
    return CHOICES.some(([name]) => name === choice) ? choice : "auto";
  } catch {
    return "auto";
  }
}

function apply(choice) {
  if (choice === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = choice;
}

apply(remembered());

/** Return the switch. */
export function themeSwitch() {
  const now = remembered();
  const select = h(
    "select",
    {
      id: "theme",
      onchange: () => {
        apply(select.value);
        try {
          window.localStorage.setItem(KEY, select.value);
        } catch {
          // It then lasts as long as the page.
        }
      },
    },
    CHOICES.map(([name, text]) => h("option", { value: name, selected: name === now }, text)),
  );
  return h("label", { class: "control" }, h("span", { class: "hidden" }, "Colours"), select);
}
