// Numbers, times and addresses as people read them.

const LOCALE = "en-US";
export const NONE = "–";

const grouped = new Intl.NumberFormat(LOCALE, { maximumFractionDigits: 0 });
const one = new Intl.NumberFormat(LOCALE, { maximumFractionDigits: 1, minimumFractionDigits: 1 });
const short = new Intl.NumberFormat(LOCALE, { maximumSignificantDigits: 3 });

const isKnown = (value) => value !== null && value !== undefined;

export const count = (value) => (isKnown(value) ? grouped.format(value) : NONE);

/** Milliseconds, with a decimal only where they are few. */
export function ms(value) {
  if (!isKnown(value)) return NONE;
  return `${value >= 1000 || value === 0 ? grouped.format(value) : value >= 100 ? one.format(value) : short.format(value)} ms`;
}

export function percent(share) {
  if (!isKnown(share)) return NONE;
  const value = 100 * share;
  return `${value.toFixed(Math.abs(value) < 10 ? 2 : 1)} %`;
}

/** A difference in percent, with its sign. */
export const change = (share) => (isKnown(share) ? `${share < 0 ? "−" : "+"}${percent(Math.abs(share))}` : NONE);

export const plural = (number, noun, more = `${noun}s`) => `${count(number)} ${number === 1 ? noun : more}`;

/** A mark of an axis, short. */
export const mark = (value) => (Math.abs(value) >= 1000 ? grouped.format(value) : short.format(value));

const day = new Intl.DateTimeFormat(LOCALE, { dateStyle: "medium", timeStyle: "medium" });

export const moment = (seconds) => (isKnown(seconds) && seconds > 0 ? day.format(seconds * 1000) : NONE);

export const range = (first, last) => (first === last ? count(first) : `${count(first)} to ${count(last)}`);

/** Addresses of this page's views; they stand behind the `#`, which browsers do not send. */
export const jobAddress = (job) => `#/jobs/${encodeURIComponent(job)}`;
export const iterationAddress = (job, iteration) => `${jobAddress(job)}/iterations/${iteration}`;
