"""Jobs with their iterations, tokens, the audit record; plans know when they were stored."""

import time
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Create what is new, and let old plans count as stored now."""
    is_postgresql = op.get_bind().dialect.name == "postgresql"
    op.add_column("plans", sa.Column("created_at", sa.Float(53), nullable=False, server_default="0"))
    plans = sa.table("plans", sa.column("created_at", sa.Float(53)))
    now = sa.cast(sa.extract("epoch", sa.func.clock_timestamp()), sa.Float(53)) if is_postgresql else time.time()
    op.execute(plans.update().values(created_at=now))
    op.create_index("ix_plans_created_at", "plans", ["created_at"])
    if is_postgresql:
        op.alter_column("plans", "number", type_=sa.BigInteger, existing_nullable=False)
        op.execute("ALTER SEQUENCE plans_number_seq AS bigint")
        op.alter_column("profiles", "name", type_=_names(128), existing_nullable=False)
    _create_jobs()
    _create_iterations()
    _create_access()


def downgrade() -> None:
    """Drop everything that is new."""
    for table in ("audit", "tokens", "timings", "batches", "iterations", "job_profiles", "jobs"):
        op.drop_table(table)
    op.drop_index("ix_plans_created_at", "plans")
    op.drop_column("plans", "created_at")
    if op.get_bind().dialect.name == "postgresql":
        op.alter_column("profiles", "name", type_=sa.String(128), existing_nullable=False)
        op.execute("ALTER SEQUENCE plans_number_seq AS integer")
        op.alter_column("plans", "number", type_=sa.Integer, existing_nullable=False)


def _names(length: int) -> Any:
    return sa.String(length).with_variant(sa.String(length, collation="C"), "postgresql")


def _number() -> Any:
    return sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def _create_jobs() -> None:
    op.create_table(
        "jobs",
        sa.Column("number", _number(), primary_key=True, autoincrement=True),
        sa.Column("name", _names(128), nullable=True),
        sa.Column("spec", sa.LargeBinary, nullable=False),
        sa.Column("created_at", sa.Float(53), nullable=False),
        sa.Column("served", sa.BigInteger, nullable=False),
        sa.Column("num_iterations", sa.BigInteger, nullable=False),
        sa.Column("num_planned", sa.BigInteger, nullable=False),
        sa.Column("num_failed", sa.BigInteger, nullable=False),
        sa.Column("num_open", sa.BigInteger, nullable=False),
        sa.UniqueConstraint("name", name="uq_jobs_name"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_jobs_served", "jobs", ["served"])
    _create_partial_index("ix_jobs_turn", "jobs", ["served", "number"], "num_open > 0")
    _create_partial_index("ix_jobs_deleted", "jobs", ["number"], "name IS NULL")
    op.create_table(
        "job_profiles",
        sa.Column("job_number", _number(), sa.ForeignKey("jobs.number", ondelete="CASCADE"), primary_key=True),
        sa.Column("profile", _names(128), primary_key=True),
    )
    op.create_index("ix_job_profiles_profile", "job_profiles", ["profile"])


def _create_iterations() -> None:
    op.create_table(
        "iterations",
        sa.Column("number", _number(), primary_key=True, autoincrement=True),
        sa.Column("job_number", _number(), sa.ForeignKey("jobs.number", ondelete="CASCADE"), nullable=False),
        sa.Column("iteration", sa.BigInteger, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("num_expected", sa.BigInteger, nullable=False),
        sa.Column("num_reported", sa.BigInteger, nullable=False),
        sa.Column("began_at", sa.Float(53), nullable=False),
        sa.Column("due_at", sa.Float(53), nullable=False),
        sa.Column("claimable_at", sa.Float(53), nullable=True),
        sa.Column("finished_at", sa.Float(53), nullable=True),
        sa.Column("num_tries", sa.BigInteger, nullable=False),
        sa.Column("owner", sa.Text, nullable=True),
        sa.Column("request_key", sa.String(80), sa.ForeignKey("plans.request_key"), nullable=True),
        sa.Column("summary", sa.LargeBinary, nullable=True),
        sa.Column("problem", sa.LargeBinary, nullable=True),
        sa.Column("measured_ms", sa.Float(53), nullable=True),
        sa.UniqueConstraint("job_number", "iteration", name="uq_iterations_job_iteration"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_iterations_request_key", "iterations", ["request_key"])
    _create_partial_index("ix_iterations_claimable", "iterations", ["claimable_at"], "claimable_at IS NOT NULL")
    _create_partial_index(
        "ix_iterations_job_claimable", "iterations", ["job_number", "claimable_at"], "claimable_at IS NOT NULL"
    )
    _create_partial_index("ix_iterations_finished", "iterations", ["finished_at"], "finished_at IS NOT NULL")
    op.create_table(
        "batches",
        sa.Column(
            "iteration_number", _number(), sa.ForeignKey("iterations.number", ondelete="CASCADE"), primary_key=True
        ),
        sa.Column("source", _names(128), primary_key=True),
        sa.Column("body", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "timings",
        sa.Column("number", _number(), primary_key=True, autoincrement=True),
        sa.Column(
            "iteration_number", _number(), sa.ForeignKey("iterations.number", ondelete="CASCADE"), nullable=False
        ),
        sa.Column("key", sa.String(80), nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.UniqueConstraint("iteration_number", "key", name="uq_timings_iteration_key"),
        sqlite_autoincrement=True,
    )


def _create_access() -> None:
    op.create_table(
        "tokens",
        sa.Column("name", _names(128), primary_key=True),
        sa.Column("secret_hash", sa.String(64), nullable=False),
        sa.Column("scope", sa.String(16), nullable=False),
        sa.Column("jobs", sa.Text, nullable=True),
        sa.Column("created_at", sa.Float(53), nullable=False),
        sa.UniqueConstraint("secret_hash", name="uq_tokens_secret_hash"),
    )
    op.create_table(
        "audit",
        sa.Column("number", _number(), primary_key=True, autoincrement=True),
        sa.Column("at", sa.Float(53), nullable=False),
        sa.Column("token", sa.Text, nullable=True),
        sa.Column("action", sa.Text, nullable=False),
        sa.Column("subject", sa.Text, nullable=False),
        sa.Column("outcome", sa.String(16), nullable=False),
        sqlite_autoincrement=True,
    )


def _create_partial_index(name: str, table: str, columns: list[str], where: str) -> None:
    op.create_index(name, table, columns, sqlite_where=sa.text(where), postgresql_where=sa.text(where))
