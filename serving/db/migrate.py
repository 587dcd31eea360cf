"""Brings the schema to this code's version at start; any number of control planes may start at once."""

from __future__ import annotations

import contextlib
from collections.abc import Generator

import filelock
import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory

from serving.db import engine, errors

MIGRATION_LOCK = 0x511_9A_02
"""PostgreSQL advisory lock that one migrating control plane holds."""

LOCK_TIMEOUT_S = 60


def upgrade(database: engine.Database) -> None:
    """Run all outstanding migrations; does nothing when there are none.

    Raises:
        errors.DatabaseUnavailable: the database does not answer, or another control plane migrates for over 60 s.
        errors.MigrationFailed: the schema is newer than this code.
    """
    with engine.translated(), _alone(database), database.engine.connect() as connection:
        if not database.is_sqlite:
            connection.execute(sa.text(f"SET lock_timeout = '{LOCK_TIMEOUT_S}s'"))
            connection.execute(sa.text("SET statement_timeout = 0"))
            connection.execute(sa.select(sa.func.pg_advisory_lock(MIGRATION_LOCK)))
            connection.commit()
        try:
            _upgrade(connection)
        finally:
            # A pooled connection must not carry the lock or the settings into its next life.
            connection.rollback()
            connection.invalidate()


def is_current(database: engine.Database) -> bool:
    """Whether the schema is the one that this code was written for."""
    with engine.translated(), database.engine.connect() as connection:
        return MigrationContext.configure(connection).get_current_revision() == _head()


def _upgrade(connection: sa.Connection) -> None:
    current = MigrationContext.configure(connection).get_current_revision()
    connection.rollback()
    if current == _head():
        return
    known = {script.revision for script in ScriptDirectory.from_config(_config()).walk_revisions()}
    if current is not None and current not in known:
        raise errors.MigrationFailed(
            f"the database's schema {current} is newer than this control plane knows (up to {_head()}); "
            "start the newer release, or restore the backup made before the upgrade"
        )
    config = _config()
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
    connection.commit()


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", "serving.db:migrations")
    config.set_main_option("path_separator", "os")
    return config


def _head() -> str | None:
    return ScriptDirectory.from_config(_config()).get_current_head()


@contextlib.contextmanager
def _alone(database: engine.Database) -> Generator[None]:
    if database.file is None:
        yield
        return
    database.file.parent.mkdir(parents=True, exist_ok=True)
    lock = filelock.FileLock(f"{database.file}.migrate.lock", timeout=LOCK_TIMEOUT_S)
    try:
        with lock:
            yield
    except filelock.Timeout as error:
        raise errors.DatabaseUnavailable(
            f"another control plane has been migrating {database.file} for over {LOCK_TIMEOUT_S} s"
        ) from error
