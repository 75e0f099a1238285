"""Jobs learn from measured times."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def _job_number() -> sa.Column[int]:
    number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    return sa.Column("job_number", number, sa.ForeignKey("jobs.number", ondelete="CASCADE"), primary_key=True)


def upgrade() -> None:
    """Add the tables of what is learned."""
    op.create_table(
        "learners",
        _job_number(),
        sa.Column("revision", sa.BigInteger, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "learned",
        _job_number(),
        sa.Column("version", sa.BigInteger, primary_key=True),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.Column("created_at", sa.Float(53), nullable=False),
    )


def downgrade() -> None:
    """Forget what was learned; plans that were made with it stay."""
    op.drop_table("learned")
    op.drop_table("learners")
