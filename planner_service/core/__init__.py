"""The optimiser: pure functions from problems to plans; no I/O, no clock, no globals."""
