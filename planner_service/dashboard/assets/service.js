// Asks the service, and turns whatever goes wrong into a `Problem`.

import { token } from "./token.js";

const TIMEOUT_MS = 20_000;

/** Why something could not be had, as the service's problem documents tell it. */
export class Problem extends Error {
  constructor({ status = 0, code = "", detail = "", remedy = "", request_id: requestId = "" }) {
    super(detail);
    Object.assign(this, { status, code, detail, remedy, requestId });
  }

  /** Whether a token, or another one, would help. */
  get needsToken() {
    return this.status === 401;
  }
}

async function problemOf(answer) {
  try {
    const told = await answer.json();
    return new Problem({ ...told, status: answer.status });
  } catch {
    return new Problem({
      status: answer.status,
      code: "unreadable-answer",
      detail: `the service answered ${answer.status} and nothing that says why`,
      remedy: "see whether a proxy stands between this page and the service",
    });
  }
}

async function ask(path, signal) {
  const secret = token();
  const headers = { Accept: "application/json" };
  if (secret !== null) headers.Authorization = `Bearer ${secret}`;
  const limit = AbortSignal.timeout(TIMEOUT_MS);
  let answer;
  try {
    answer = await fetch(path, {
      headers,
      credentials: "omit",
      redirect: "error",
      signal: signal ? AbortSignal.any([signal, limit]) : limit,
    });
  } catch (failure) {
    if (signal?.aborted) throw failure;
    throw new Problem({
      code: limit.aborted ? "no-answer-in-time" : "unreachable",
      detail: limit.aborted ? `the service did not answer within ${TIMEOUT_MS / 1000} s` : "the service cannot be reached",
      remedy: "this page asks again by itself; see whether the service runs",
    });
  }
  if (!answer.ok) throw await problemOf(answer);
  return answer;
}

/** Return what the service has at a path, as JSON. */
export async function get(path, { signal, query = {} } = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== null && value !== undefined);
  const text = new URLSearchParams(given).toString();
  return (await ask(text ? `${path}?${text}` : path, signal)).json();
}

/** Return what the service has at a path, as bytes to save. */
export async function download(path) {
  return (await ask(path)).blob();
}

export const jobPath = (job) => `v1/jobs/${encodeURIComponent(job)}`;
export const iterationPath = (job, iteration) => `${jobPath(job)}/iterations/${iteration}`;
