"""Nodes report that they are there."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def _names() -> sa.String:
    return sa.String(128).with_variant(sa.String(128, collation="C"), "postgresql")


def upgrade() -> None:
    """Add the table of nodes."""
    op.create_table(
        "nodes",
        sa.Column("name", _names(), primary_key=True),
        sa.Column("content", sa.LargeBinary, nullable=False),
        sa.Column("job", _names(), nullable=True),
        sa.Column("registered_at", sa.Float(53), nullable=False),
        sa.Column("last_seen_at", sa.Float(53), nullable=False),
    )
    op.create_index("ix_nodes_last_seen_at", "nodes", ["last_seen_at"])


def downgrade() -> None:
    """Forget all nodes."""
    op.drop_table("nodes")
