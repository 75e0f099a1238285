"""Profiles and plans, as version 0.1.0 of the planner creates them without telling a revision."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Create both tables."""
    op.create_table(
        "profiles",
        sa.Column("name", sa.String(128), primary_key=True),
        sa.Column("content", sa.LargeBinary, nullable=False),
        sa.Column("submission", sa.String(80), nullable=False),
    )
    op.create_table(
        "plans",
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("request_key", sa.String(80), nullable=False, unique=True),
        sa.Column("digest", sa.String(80), nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
    )
    op.create_index("ix_plans_digest", "plans", ["digest"])


def downgrade() -> None:
    """Drop both tables."""
    op.drop_table("plans")
    op.drop_table("profiles")
