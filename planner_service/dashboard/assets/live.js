// Asks again and again, never more than the service can well bear.

const LEAST_MS = 2000;
const MOST_MS = 30_000;
const SHARE = 20; // an answer that took t is asked for again no sooner than 20 t later

/**
 * Call `refresh(signal)` now and then until stopped: one call at a time, less often where answers take long or fail,
 * and not at all while nobody sees the page.
 *
 * `onState` is told `{ state: "live" | "paused" | "failed", problem, retryMs }`.
 */
export function keepFresh(refresh, onState) {
  const stop = new AbortController();
  let timer = null;
  let numFailed = 0;
  let isRunning = false;
  let isWantedAgain = false;

  function schedule(delayMs) {
    clearTimeout(timer);
    if (!stop.signal.aborted) timer = setTimeout(run, delayMs);
  }

  async function run() {
    if (document.hidden) {
      onState({ state: "paused" });
      return; // `visibilitychange` goes on
    }
    if (isRunning) {
      isWantedAgain = true;
      return;
    }
    isRunning = true;
    isWantedAgain = false;
    const began = performance.now();
    try {
      await refresh(stop.signal);
      if (stop.signal.aborted) return;
      numFailed = 0;
      onState({ state: "live" });
      schedule(Math.min(MOST_MS, Math.max(LEAST_MS, SHARE * (performance.now() - began))));
    } catch (problem) {
      if (stop.signal.aborted) return;
      numFailed += 1;
      const retryMs = Math.min(MOST_MS, LEAST_MS * 2 ** numFailed);
      onState({ state: "failed", problem, retryMs });
      // Without the right to see it, asking again helps nobody.
      if (problem.status !== 401 && problem.status !== 403) schedule(retryMs);
    } finally {
      isRunning = false;
      if (isWantedAgain) schedule(0);
    }
  }

  const onVisible = () => (document.hidden ? onState({ state: "paused" }) : schedule(0));
  document.addEventListener("visibilitychange", onVisible, { signal: stop.signal });
  run();
  return {
    now: () => schedule(0),
    stop() {
      stop.abort();
      clearTimeout(timer);
    },
  };
}
