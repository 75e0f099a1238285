"""What people and charts are shown of jobs and plans: pure values in bounded size."""

from planner_service.dashboard.view_desk import ViewDesk

__all__ = ["ViewDesk"]
