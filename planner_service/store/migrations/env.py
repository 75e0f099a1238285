"""What Alembic runs to migrate: on the connection it is given, in the transaction that is open on it."""

from alembic import context

from planner_service.store.sql.tables import METADATA

context.configure(connection=context.config.attributes["connection"], target_metadata=METADATA)
with context.begin_transaction():
    context.run_migrations()
