"""What people use today, for comparison: our own code from published descriptions."""

from planner_service.core.baselines.arrival import items_in_arrival_order
from planner_service.core.baselines.compare import compare
from planner_service.core.baselines.loader import plain_loader

__all__ = ["compare", "items_in_arrival_order", "plain_loader"]
