"""Who may do what: decisions about tokens, and the tokens and the audit record themselves."""

from planner_service.access.decide import ANYBODY, NOBODY, Allowed, Caller, Need, Reach, Refused, decide
from planner_service.access.lookup import TokenLookup
from planner_service.access.record import AuditRecord
from planner_service.access.register import TokenRegister
from planner_service.access.secret import hash_of, is_secret, new_secret, without_secrets
from planner_service.access.visible import visible_jobs

__all__ = [
    "ANYBODY",
    "NOBODY",
    "Allowed",
    "AuditRecord",
    "Caller",
    "Need",
    "Reach",
    "Refused",
    "TokenLookup",
    "TokenRegister",
    "decide",
    "hash_of",
    "is_secret",
    "new_secret",
    "visible_jobs",
    "without_secrets",
]
