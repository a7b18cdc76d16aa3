"""Alembic's entry point: it runs the migrations on the connection that `forewarn.store.migrate` passes."""

from alembic import context

from forewarn.store.tables import metadata

connection = context.config.attributes["connection"]
context.configure(connection=connection, target_metadata=metadata, render_as_batch=True)
with context.begin_transaction():
    context.run_migrations()
