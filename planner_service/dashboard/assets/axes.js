// Scales and axes of charts.

import { s } from "./dom.js";

export const LEFT = 64;
export const RIGHT = 10;

/** Round values from `low` to `high`, about `most` of them, of which the outer ones hold both. */
export function marks(low, high, { most = 4, leastStep = 0 } = {}) {
  if (!(high > low)) high = low + (low === 0 ? 1 : Math.abs(low) * 0.1);
  const raw = (high - low) / most;
  const magnitude = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((factor) => factor * magnitude).find((it) => it >= Math.max(raw * (1 - 1e-9), leastStep)) ?? leastStep;
  const first = Math.floor(low / step + 1e-9);
  const last = Math.ceil(high / step - 1e-9);
  return Array.from({ length: last - first + 1 }, (_, index) => (first + index) * step);
}

/** A vertical scale for values that are known to be at least 0. */
export function scaleOf(values, { top, height, mayStartHigher = false, mayBeLogarithmic = false, leastStep = 0 }) {
  const known = values.filter((value) => value !== null && Number.isFinite(value));
  let low = Math.min(...known);
  const high = Math.max(...known);
  const positive = Math.min(...known.filter((value) => value > 0));
  if (known.length && mayBeLogarithmic && positive > 0 && high / positive > 20) return logarithmic(positive, high, top, height);
  if (!known.length) return linear([0, 1], top, height);
  if (!(mayStartHigher && low > 0.5 * high)) low = 0;
  return linear(marks(Math.max(0, low - 0.1 * (high - low)), high, { leastStep }), top, height);
}

function linear(shown, top, height) {
  const low = shown[0];
  const span = shown[shown.length - 1] - low;
  return { shown, y: (value) => top + height * (1 - (value - low) / span) };
}

function logarithmic(low, high, top, height) {
  const first = Math.floor(Math.log10(low));
  const last = Math.max(first + 1, Math.ceil(Math.log10(high)));
  const shown = Array.from({ length: last - first + 1 }, (_, index) => 10 ** (first + index));
  return { shown, y: (value) => top + height * (1 - (Math.log10(Math.max(value, shown[0])) - first) / (last - first)) };
}

/** Horizontal lines with their values. */
export function grid(scale, width, text) {
  return scale.shown.map((value) => [
    s("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: scale.y(value), y2: scale.y(value) }),
    s("text", { class: "axis", x: LEFT - 8, y: scale.y(value) + 4, "text-anchor": "end" }, text(value)),
  ]);
}

/** Names below positions, as many as there is room for; `x(index)` is the middle of a position. */
export function names(texts, x, y, width) {
  const longest = Math.max(1, ...texts.map((text) => text.length));
  const room = Math.max(1, Math.floor((width - LEFT - RIGHT) / (longest * 7 + 16)));
  const every = Math.max(1, Math.ceil(texts.length / room));
  return texts.map((text, index) =>
    index % every === 0 ? s("text", { class: "axis", x: x(index), y, "text-anchor": "middle" }, text) : null,
  );
}

/** A line through the values that are known, broken where one is not. */
export function path(values, x, y) {
  let isDrawing = false;
  let d = "";
  values.forEach((value, index) => {
    if (value === null || value === undefined) {
      isDrawing = false;
      return;
    }
    d += `${isDrawing ? "L" : "M"}${x(index).toFixed(1)} ${y(value).toFixed(1)}`;
    if (!isDrawing && (values[index + 1] ?? null) === null) d += "h0.01"; // a lone value is a dot
    isDrawing = true;
  });
  return d;
}

/** The area between two rows of values. */
export function band(lows, highs, x, y) {
  let d = "";
  for (let start = 0; start < lows.length; start += 1) {
    if (lows[start] === null) continue;
    let end = start;
    while (end + 1 < lows.length && lows[end + 1] !== null) end += 1;
    const over = [];
    const under = [];
    for (let index = start; index <= end; index += 1) {
      over.push(`${x(index).toFixed(1)} ${y(highs[index]).toFixed(1)}`);
      under.unshift(`${x(index).toFixed(1)} ${y(lows[index]).toFixed(1)}`);
    }
    d += `M${over.join("L")}L${under.join("L")}Z`;
    start = end;
  }
  return d;
}

/** A rectangle as part of a path. */
export const box = (x, y, width, height) =>
  `M${x.toFixed(1)} ${y.toFixed(1)}h${width.toFixed(2)}v${height.toFixed(2)}h${(-width).toFixed(2)}Z`;
