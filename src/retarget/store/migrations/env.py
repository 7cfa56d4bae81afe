"""Run the migrations on the connection, and in the transaction, of the caller."""

from alembic import context

from retarget.store.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    render_as_batch=True,  # SQLite can change some columns only by recreating the table
)
with context.begin_transaction():
    context.run_migrations()
