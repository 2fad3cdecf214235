"""Alembic runs this module for each migration: on the connection of `migrate`, in one transaction."""

from alembic import context

context.configure(connection=context.config.attributes["connection"], transaction_per_migration=False)
with context.begin_transaction():
    context.run_migrations()
