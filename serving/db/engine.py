"""One database, three ways to open a transaction, on SQLite and PostgreSQL alike.

=========== =============================================== =================================================
            SQLite                                          PostgreSQL
=========== =============================================== =================================================
read        ``BEGIN``: a snapshot, never waits              a plain transaction
write       ``BEGIN IMMEDIATE``: the one writer             a plain transaction
exclusive   the same                                        holds one advisory lock until the end
=========== =============================================== =================================================

All changes to stages, rollouts and assignments happen under ``exclusive``: two control planes, or two requests, take
their turns there. Reports of replicas and gateways only ``write``.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Generator
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event, exc
from sqlalchemy.orm import Session

from serving.db import errors

SQLITE_BUSY_TIMEOUT_MS = 3_000
"""How long a SQLite writer waits for its turn before it answers 503."""

CONNECT_TIMEOUT_S = 3
LOCK_TIMEOUT_MS = 3_000
STATEMENT_TIMEOUT_MS = 15_000
POOL_SIZE = 10
POOL_WAIT_S = 5

CONTROL_LOCK = 0x511_9A_01
"""PostgreSQL advisory lock of ``exclusive``."""

_WRITE = "slipway_write"

_GONE_SQLSTATES = frozenset({"55P03", "57014", "40001", "40P01", "53300", "25006"})
"""Lock and statement timeouts, serialization, deadlock, too many connections, a standby: try again later."""


class Database:
    """A pool of connections. Nothing is opened before the first transaction."""

    def __init__(self, url: str) -> None:
        self.url = sa.make_url(url)
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        if not self.is_sqlite and self.url.get_backend_name() != "postgresql":
            raise ValueError(
                f"SLIPWAY_DATABASE_URL names {self.url.get_backend_name()}; "
                "expected sqlite:///FILE or postgresql+psycopg://USER@HOST/NAME"
            )
        self.engine = _sqlite(self.url) if self.is_sqlite else _postgresql(self.url)
        # SQLite's own waiting sleeps up to 100 ms between tries; threads of one process hand over at once.
        self._turn: contextlib.AbstractContextManager[object] = _Turn() if self.is_sqlite else contextlib.nullcontext()
        self._writing = self.engine.execution_options(**{_WRITE: True})

    @property
    def file(self) -> Path | None:
        """The SQLite file; ``None`` on PostgreSQL."""
        return Path(self.url.database) if self.is_sqlite and self.url.database else None

    @contextlib.contextmanager
    def read(self) -> Generator[Session]:
        """A transaction that changes nothing.

        Raises:
            errors.DatabaseUnavailable: as all three.
        """
        with translated(), Session(self.engine, expire_on_commit=False) as session:
            yield session

    @contextlib.contextmanager
    def write(self) -> Generator[Session]:
        """A transaction that is committed at the end, and rolled back on any exception."""
        with (
            self._turn,
            translated(),
            Session(self._writing, expire_on_commit=False) as session,
            session.begin(),
        ):
            yield session

    @contextlib.contextmanager
    def exclusive(self) -> Generator[Session]:
        """A ``write`` that no other ``exclusive`` of any process overlaps."""
        with self.write() as session:
            if not self.is_sqlite:
                session.execute(sa.select(sa.func.pg_advisory_xact_lock(CONTROL_LOCK)))
            yield session

    def close(self) -> None:
        self.engine.dispose()


class _Turn:
    """One writer at a time in this process, with a bounded wait. Not reentrant: transactions do not nest."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        if not self._lock.acquire(timeout=SQLITE_BUSY_TIMEOUT_MS / 1000):
            raise errors.DatabaseUnavailable(
                f"the database has been busy with another write for {SQLITE_BUSY_TIMEOUT_MS / 1000:g} s; try again"
            )

    def __exit__(self, *_: object) -> None:
        self._lock.release()


@contextlib.contextmanager
def translated() -> Generator[None]:
    """Turn "the database cannot now" into one error of ours; let faults through as they are."""
    try:
        yield
    except exc.TimeoutError as error:
        raise errors.DatabaseUnavailable(
            f"all {POOL_SIZE} database connections were busy for {POOL_WAIT_S} s; try again"
        ) from error
    except exc.DBAPIError as error:
        if not _is_unavailability(error):
            raise
        raise errors.DatabaseUnavailable(f"the database does not answer: {_words(error)}") from error


def _is_unavailability(error: exc.DBAPIError) -> bool:
    if error.connection_invalidated or isinstance(error, exc.InterfaceError):
        return True
    sqlstate = getattr(error.orig, "sqlstate", None)
    if sqlstate is not None:
        return sqlstate in _GONE_SQLSTATES or sqlstate.startswith(("08", "57P"))
    # SQLite (locked, disk full, unreadable file) and a PostgreSQL that refuses connections carry no SQLSTATE.
    return isinstance(error, exc.OperationalError) and "no such" not in str(error.orig)


def _words(error: exc.DBAPIError) -> str:
    return str(error.orig).strip().splitlines()[0] if str(error.orig).strip() else type(error.orig).__name__


def _sqlite(url: sa.URL) -> sa.Engine:
    if not url.database or url.database == ":memory:":
        raise ValueError("SLIPWAY_DATABASE_URL needs a file: sqlite:////absolute/path/control.db")
    engine = sa.create_engine(
        url,
        pool_size=POOL_SIZE,
        max_overflow=0,
        pool_timeout=POOL_WAIT_S,
        poolclass=sa.QueuePool,
        connect_args={"timeout": SQLITE_BUSY_TIMEOUT_MS / 1000, "check_same_thread": False},
    )

    @event.listens_for(engine, "connect")
    def _configure(connection: Any, _record: Any) -> None:  # pyright: ignore[reportUnusedFunction]
        # The driver is not to begin transactions by itself: "begin" below does, with the right lock.
        connection.isolation_level = None
        for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON"):
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def _begin(connection: sa.Connection) -> None:  # pyright: ignore[reportUnusedFunction]
        writes = connection.get_execution_options().get(_WRITE, False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def _postgresql(url: sa.URL) -> sa.Engine:
    if url.drivername == "postgresql":
        url = url.set(drivername="postgresql+psycopg")
    return sa.create_engine(
        url,
        pool_size=POOL_SIZE,
        max_overflow=0,
        pool_timeout=POOL_WAIT_S,
        pool_pre_ping=True,
        pool_recycle=1800,
        connect_args={
            "connect_timeout": CONNECT_TIMEOUT_S,
            "application_name": "slipway",
            # A server that vanished without a word is noticed within seconds, not within the kernel's two hours.
            "keepalives_idle": 5,
            "keepalives_interval": 2,
            "keepalives_count": 3,
            "tcp_user_timeout": 10_000,
            "options": f"-c lock_timeout={LOCK_TIMEOUT_MS} -c statement_timeout={STATEMENT_TIMEOUT_MS}"
            " -c idle_in_transaction_session_timeout=60000 -c timezone=UTC",
        },
    )
