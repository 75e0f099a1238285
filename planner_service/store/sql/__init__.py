"""The store on SQLAlchemy: a SQLite file by default, PostgreSQL by URL."""

from planner_service.store.sql.address import database_url
from planner_service.store.sql.limits import StoreLimits
from planner_service.store.sql.sql_store import SqlStore
from planner_service.store.sql.upgrade import look_into

__all__ = ["SqlStore", "StoreLimits", "database_url", "look_into"]
