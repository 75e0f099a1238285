"""Where everything the service knows is kept."""

from planner_service.store.access_store import AccessStore, AuditRow, TokenRow
from planner_service.store.faults import (
    BatchConflict,
    IterationClosed,
    JobConflict,
    JobUnknown,
    PlanStands,
    ProfileConflict,
    ProfileInUse,
    StoreUnavailable,
    TokenConflict,
    TooManyOpen,
)
from planner_service.store.interface import (
    KEEP_AUDIT_S,
    KEEP_NODES_S,
    IterationChanged,
    OnChange,
    OnUse,
    Store,
    StoreUse,
)
from planner_service.store.job_store import Claim, IterationRow, JobCounts, JobRow, JobStore, ReportTerms
from planner_service.store.learn_store import LearnedRow, LearnerRow, LearnStore, MeasuredRow
from planner_service.store.node_store import NodeRow, NodeStore
from planner_service.store.plan_store import PlanRow, PlanStore, StoredPlan
from planner_service.store.profile_store import ProfileRow, ProfileStore
from planner_service.store.sql import SqlStore, StoreLimits, database_url, look_into

__all__ = [
    "KEEP_AUDIT_S",
    "KEEP_NODES_S",
    "AccessStore",
    "AuditRow",
    "BatchConflict",
    "Claim",
    "IterationChanged",
    "IterationClosed",
    "IterationRow",
    "JobConflict",
    "JobCounts",
    "JobRow",
    "JobStore",
    "JobUnknown",
    "LearnStore",
    "LearnedRow",
    "LearnerRow",
    "MeasuredRow",
    "NodeRow",
    "NodeStore",
    "OnChange",
    "OnUse",
    "PlanRow",
    "PlanStands",
    "PlanStore",
    "ProfileConflict",
    "ProfileInUse",
    "ProfileRow",
    "ProfileStore",
    "ReportTerms",
    "SqlStore",
    "Store",
    "StoreLimits",
    "StoreUnavailable",
    "StoreUse",
    "StoredPlan",
    "TokenConflict",
    "TokenRow",
    "TooManyOpen",
    "database_url",
    "look_into",
]
