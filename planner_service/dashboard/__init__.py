"""The dashboard at ``/``: what it shows as pure values in bounded size, and the files that a browser loads."""

from planner_service.dashboard.view_desk import ViewDesk

__all__ = ["ViewDesk"]
