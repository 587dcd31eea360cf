"""Alembic's entry: ``serving.db.migrate`` hands over an open connection and holds the lock."""

from __future__ import annotations

from alembic import context

from serving.db import tables

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=tables.Base.metadata,
    transactional_ddl=True,
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
