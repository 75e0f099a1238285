"""The planning service: the optimiser, its HTTP interface and its commands."""
