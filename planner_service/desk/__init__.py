"""Where requests become plans: looked up, or found by a solver and kept."""
