"""Run by Alembic for each migration: on the connection that `migrate` has opened, in one transaction."""

from alembic import context

context.configure(connection=context.config.attributes["connection"], transaction_per_migration=False)
with context.begin_transaction():
    context.run_migrations()
