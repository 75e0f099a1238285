"""Where plans and profiles are kept."""

from planner_service.store.interface import (
    PlanRow,
    ProfileConflict,
    ProfileRow,
    Store,
    StoreUnavailable,
)
from planner_service.store.sql import SqlStore, database_url

__all__ = [
    "PlanRow",
    "ProfileConflict",
    "ProfileRow",
    "SqlStore",
    "Store",
    "StoreUnavailable",
    "database_url",
]
