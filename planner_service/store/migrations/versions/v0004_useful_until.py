"""Iterations know from when a plan is of no use to them any more."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"

_MAY_BE_LATE = sa.text("claimable_at IS NOT NULL AND useless_at IS NOT NULL")


def upgrade() -> None:
    """Add the time; to iterations that are there a plan is always of use."""
    op.add_column("iterations", sa.Column("useless_at", sa.Float(53), nullable=True))
    op.create_index(
        "ix_iterations_useless",
        "iterations",
        ["useless_at"],
        sqlite_where=_MAY_BE_LATE,
        postgresql_where=_MAY_BE_LATE,
    )


def downgrade() -> None:
    """Forget the time."""
    op.drop_index("ix_iterations_useless", "iterations")
    op.drop_column("iterations", "useless_at")
