"""Runs plans: pure decisions (layout, routes) and the collectives and kernels that act on them."""
