"""Measures what micro-batches cost on this machine: time, memory, collectives, layout by layout.

`settings` says what to measure, `packings` and `rounds` decide what comes next, `round_plan` how it runs, `readings`
and `assemble` what follows from it: all pure. `ranks`, `collectives` and `machine` measure, `journal` keeps records.
"""

from worker_agent.profiler.held_out import split_held_out
from worker_agent.profiler.journal import Journal, JournalRefused
from worker_agent.profiler.measure import MeasuringProgress, measure
from worker_agent.profiler.settings import Layout, ProfilingSettings, parse_layouts

__all__ = [
    "Journal",
    "JournalRefused",
    "Layout",
    "MeasuringProgress",
    "ProfilingSettings",
    "measure",
    "parse_layouts",
    "split_held_out",
]
