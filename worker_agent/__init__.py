"""What runs on GPU nodes: the executor of plans and the profiler."""
