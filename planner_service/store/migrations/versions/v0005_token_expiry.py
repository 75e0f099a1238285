"""Tokens may expire."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Add the time; tokens that are there never expire."""
    op.add_column("tokens", sa.Column("expires_at", sa.Float(53), nullable=True))


def downgrade() -> None:
    """Delete tokens that expire, which would be good for ever otherwise, and forget the time."""
    op.execute("DELETE FROM tokens WHERE expires_at IS NOT NULL")
    op.drop_column("tokens", "expires_at")
