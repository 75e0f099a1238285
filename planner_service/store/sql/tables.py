"""The tables as this version of the planner reads and writes them.

Jobs and iterations are numbered beside their names, so that an iteration is never taken for one of the same name that
came after it was deleted. Whatever changes these tables needs a migration; a test compares the two.
"""

from sqlalchemy import (
    BigInteger,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
)

METADATA = MetaData()


def _names(length: int) -> String:
    """Names order by character code everywhere."""
    return String(length).with_variant(String(length, collation="C"), "postgresql")


def _number() -> BigInteger:
    """SQLite numbers rows by itself in a column of this very type only."""
    return BigInteger().with_variant(Integer(), "sqlite")


PROFILES = Table(
    "profiles",
    METADATA,
    Column("name", _names(128), primary_key=True),
    Column("content", LargeBinary, nullable=False),
    Column("submission", String(80), nullable=False),
)

PLANS = Table(
    "plans",
    METADATA,
    Column("number", _number(), primary_key=True, autoincrement=True),
    Column("request_key", String(80), nullable=False, unique=True),
    Column("digest", String(80), nullable=False, index=True),
    Column("body", LargeBinary, nullable=False),
    Column("created_at", Float(53), nullable=False, server_default="0"),
    Index("ix_plans_created_at", "created_at"),
)

JOBS = Table(
    "jobs",
    METADATA,
    Column("number", _number(), primary_key=True, autoincrement=True),
    # A deleted job has no name; its iterations go little by little.
    Column("name", _names(128), nullable=True),
    Column("spec", LargeBinary, nullable=False),
    Column("created_at", Float(53), nullable=False),
    # Turns rather than times: a clock that is set back must not put a job last for as long.
    Column("served", BigInteger, nullable=False),
    Column("num_iterations", BigInteger, nullable=False),
    Column("num_planned", BigInteger, nullable=False),
    Column("num_failed", BigInteger, nullable=False),
    Column("num_open", BigInteger, nullable=False),
    UniqueConstraint("name", name="uq_jobs_name"),
    sqlite_autoincrement=True,
)
Index(
    "ix_jobs_turn",
    JOBS.c.served,
    JOBS.c.number,
    sqlite_where=JOBS.c.num_open > 0,
    postgresql_where=JOBS.c.num_open > 0,
)
Index("ix_jobs_served", JOBS.c.served)
Index("ix_jobs_deleted", JOBS.c.number, sqlite_where=JOBS.c.name.is_(None), postgresql_where=JOBS.c.name.is_(None))

JOB_PROFILES = Table(
    "job_profiles",
    METADATA,
    Column("job_number", _number(), ForeignKey("jobs.number", ondelete="CASCADE"), primary_key=True),
    Column("profile", _names(128), primary_key=True),
    Index("ix_job_profiles_profile", "profile"),
)

ITERATIONS = Table(
    "iterations",
    METADATA,
    Column("number", _number(), primary_key=True, autoincrement=True),
    Column("job_number", _number(), ForeignKey("jobs.number", ondelete="CASCADE"), nullable=False),
    Column("iteration", BigInteger, nullable=False),
    Column("state", String(16), nullable=False),
    Column("num_expected", BigInteger, nullable=False),
    Column("num_reported", BigInteger, nullable=False),
    Column("began_at", Float(53), nullable=False),
    Column("due_at", Float(53), nullable=False),
    # From when a solver may take it up: its deadline, or when it became due, or the end of a lease; null if finished.
    Column("claimable_at", Float(53), nullable=True),
    # From when a plan is of no use any more; null if it always is.
    Column("useless_at", Float(53), nullable=True),
    Column("finished_at", Float(53), nullable=True),
    Column("num_tries", BigInteger, nullable=False),
    Column("owner", Text, nullable=True),
    Column("request_key", String(80), ForeignKey("plans.request_key"), nullable=True),
    Column("summary", LargeBinary, nullable=True),
    Column("problem", LargeBinary, nullable=True),
    Column("measured_ms", Float(53), nullable=True),
    UniqueConstraint("job_number", "iteration", name="uq_iterations_job_iteration"),
    Index("ix_iterations_request_key", "request_key"),
    sqlite_autoincrement=True,
)
for _name, _columns in {
    "ix_iterations_claimable": (ITERATIONS.c.claimable_at,),
    "ix_iterations_job_claimable": (ITERATIONS.c.job_number, ITERATIONS.c.claimable_at),
}.items():
    Index(
        _name,
        *_columns,
        sqlite_where=ITERATIONS.c.claimable_at.is_not(None),
        postgresql_where=ITERATIONS.c.claimable_at.is_not(None),
    )
_MAY_BE_LATE = ITERATIONS.c.claimable_at.is_not(None) & ITERATIONS.c.useless_at.is_not(None)
Index("ix_iterations_useless", ITERATIONS.c.useless_at, sqlite_where=_MAY_BE_LATE, postgresql_where=_MAY_BE_LATE)
Index(
    "ix_iterations_finished",
    ITERATIONS.c.finished_at,
    sqlite_where=ITERATIONS.c.finished_at.is_not(None),
    postgresql_where=ITERATIONS.c.finished_at.is_not(None),
)

BATCHES = Table(
    "batches",
    METADATA,
    Column("iteration_number", _number(), ForeignKey("iterations.number", ondelete="CASCADE"), primary_key=True),
    Column("source", _names(128), primary_key=True),
    Column("body", LargeBinary, nullable=False),
)

TIMINGS = Table(
    "timings",
    METADATA,
    Column("number", _number(), primary_key=True, autoincrement=True),
    Column("iteration_number", _number(), ForeignKey("iterations.number", ondelete="CASCADE"), nullable=False),
    Column("key", String(80), nullable=False),
    Column("body", LargeBinary, nullable=False),
    UniqueConstraint("iteration_number", "key", name="uq_timings_iteration_key"),
    sqlite_autoincrement=True,
)

LEARNERS = Table(
    "learners",
    METADATA,
    Column("job_number", _number(), ForeignKey("jobs.number", ondelete="CASCADE"), primary_key=True),
    Column("revision", BigInteger, nullable=False),
    Column("body", LargeBinary, nullable=False),
)

LEARNED = Table(
    "learned",
    METADATA,
    Column("job_number", _number(), ForeignKey("jobs.number", ondelete="CASCADE"), primary_key=True),
    Column("version", BigInteger, primary_key=True),
    Column("body", LargeBinary, nullable=False),
    Column("created_at", Float(53), nullable=False),
)

TOKENS = Table(
    "tokens",
    METADATA,
    Column("name", _names(128), primary_key=True),
    Column("secret_hash", String(64), nullable=False),
    Column("scope", String(16), nullable=False),
    Column("jobs", Text, nullable=True),
    Column("created_at", Float(53), nullable=False),
    # Null if never.
    Column("expires_at", Float(53), nullable=True),
    UniqueConstraint("secret_hash", name="uq_tokens_secret_hash"),
)

NODES = Table(
    "nodes",
    METADATA,
    Column("name", _names(128), primary_key=True),
    Column("content", LargeBinary, nullable=False),
    Column("job", _names(128), nullable=True),
    Column("registered_at", Float(53), nullable=False),
    Column("last_seen_at", Float(53), nullable=False),
    Index("ix_nodes_last_seen_at", "last_seen_at"),
)

AUDIT = Table(
    "audit",
    METADATA,
    Column("number", _number(), primary_key=True, autoincrement=True),
    Column("at", Float(53), nullable=False),
    Column("token", Text, nullable=True),
    Column("action", Text, nullable=False),
    Column("subject", Text, nullable=False),
    Column("outcome", String(16), nullable=False),
    Index("ix_audit_at", "at"),
    sqlite_autoincrement=True,
)
