"""The HTTP interface: thin routes over pool and store."""

from planner_service.api.app import create_app

__all__ = ["create_app"]
