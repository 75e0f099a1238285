"""How much a measurement of this machine may be; apart from what measures, which takes seconds to import."""

MOST_PACKINGS = 1000
MOST_RUNS = 80_000
"""Runs of all micro-batches of a layout: with what fills pipelines, below the samples that a measurement may hold."""
