"""What a durable commit costs on the disk where temporary files are.

Reports and whole iterations (a report, a claim, a plan, measured times) into a SQLite file with ``synchronous`` FULL,
as the planner uses it, and with NORMAL, which may lose the last commits when the machine fails; then the size of the
file. The truth of what is timed is checked: each iteration is there at the end.
"""

import statistics
import threading
import time
from pathlib import Path

import pytest
from sqlalchemy import event

from planner_service.store import JobRow, PlanRow, ReportTerms, SqlStore

NUM_ITERATIONS = 300
NUM_THREADS = 8
BATCH = b"x" * 2_000
PLAN = b"y" * 20_000
TERMS = ReportTerms(num_expected=1, wait_s=60.0, max_open=1_000_000)


def open_store(path: Path, synchronous: str) -> SqlStore:
    store = SqlStore(str(path))
    store._database.close()
    event.listen(
        store._database.engine, "connect", lambda driver, _record: driver.execute(f"PRAGMA synchronous={synchronous}")
    )
    return store


def one_after_another(store: SqlStore) -> tuple[list[float], list[float]]:
    """Return the milliseconds of each report, and of each whole iteration."""
    store.jobs.put(JobRow("run", b"{}"))
    reports_ms: list[float] = []
    wholes_ms: list[float] = []
    for number in range(NUM_ITERATIONS):
        began_at = time.perf_counter()
        store.jobs.report("run", number, {"a": BATCH}, TERMS)
        reports_ms.append(1000 * (time.perf_counter() - began_at))
        claim = store.jobs.claim("me", 60.0)
        assert claim is not None
        store.jobs.finish(claim, PlanRow(f"sha256:{number:064}", f"sha256:d{number:063}", PLAN), b"{}" * 100)
        store.jobs.put_timings("run", number, "k", b"z" * 500, 1.0)
        wholes_ms.append(1000 * (time.perf_counter() - began_at))
    assert store.jobs.counts("run").num_planned == NUM_ITERATIONS
    return reports_ms, wholes_ms


def at_once(store: SqlStore) -> float:
    """Return reports a second from several threads."""

    def work(thread: int) -> None:
        store.jobs.put(JobRow(f"of-{thread}", b"{}"))
        for number in range(NUM_ITERATIONS // NUM_THREADS):
            store.jobs.report(f"of-{thread}", number, {"a": BATCH}, TERMS)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(NUM_THREADS)]
    began_at = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return NUM_THREADS * (NUM_ITERATIONS // NUM_THREADS) / (time.perf_counter() - began_at)


@pytest.mark.bench
@pytest.mark.long
def test_a_durable_commit_keeps_what_it_acknowledged(tmp_path: Path) -> None:
    # Twice, since the first of all warms up what both use.
    for synchronous in ("FULL", "NORMAL", "FULL", "NORMAL"):
        path = tmp_path / f"{synchronous}-{time.time_ns()}.sqlite3"
        store = open_store(path, synchronous)
        before_bytes = path.stat().st_size
        reports_ms, wholes_ms = one_after_another(store)
        store._database.close()
        iteration_bytes = (path.stat().st_size - before_bytes) / NUM_ITERATIONS
        reports_a_second = at_once(store)
        store.close()
        print(  # noqa: T201 - the figures are what a bench is for
            f"{synchronous:6}  report {statistics.median(reports_ms):5.2f} ms median, "
            f"{sorted(reports_ms)[int(0.99 * NUM_ITERATIONS)]:6.2f} ms p99;  "
            f"iteration {statistics.median(wholes_ms):5.2f} ms median;  "
            f"{reports_a_second:5.0f} reports/s from {NUM_THREADS} threads;  "
            f"{iteration_bytes:.0f} bytes an iteration, {len(BATCH) + len(PLAN)} of them batch and plan"
        )
