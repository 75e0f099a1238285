"""Audit entries can be found by age, so that those that are too old can go."""

from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Create the index."""
    op.create_index("ix_audit_at", "audit", ["at"])


def downgrade() -> None:
    """Drop the index."""
    op.drop_index("ix_audit_at", "audit")
