"""What is read off the solver pool whenever somebody asks for metrics."""

import os
from collections.abc import Iterator
from pathlib import Path

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from planner_service.pool import SolverPool


class PoolReadings(Collector):
    """Metrics of one solver pool.

    Parameters
    ----------
    pool
        Which one.
    """

    def __init__(self, pool: SolverPool) -> None:
        self._pool = pool

    def collect(self) -> Iterator[Metric]:
        """Read everything once."""
        pool = self._pool
        yield GaugeMetricFamily("hydraulis_solvers", "Solver processes that there should be.", value=pool.num_solvers)
        yield GaugeMetricFamily("hydraulis_solvers_ready", "Solver processes that are warm.", value=pool.num_ready)
        yield GaugeMetricFamily("hydraulis_solvers_busy", "Solver processes that have a request.", value=pool.num_busy)
        yield CounterMetricFamily(
            "hydraulis_solvers_replaced", "Solver processes that died or were killed.", value=pool.num_replaced
        )
        yield GaugeMetricFamily(
            "hydraulis_solvers_resident_memory_bytes",
            "Memory that all solver processes hold.",
            value=sum(map(_resident_bytes, pool.pids)),
        )
        yield GaugeMetricFamily(
            "hydraulis_requests_waiting", "Requests that wait for a solver.", value=pool.num_waiting
        )


def _resident_bytes(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        # The process has just ended, or this is no Linux.
        return 0
