"""Tells the other control planes on a PostgreSQL that something changed, so that their long polls end at once.

Only a hint: one that is lost costs a second, because every control plane looks by itself that often. SQLite has one
control plane and needs none of it.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable
from typing import Any

import psycopg
import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.orm import Session

from serving.db import engine

CHANNEL = "slipway_news"
WAIT_S = 1.0
"""How long the listener waits at a time: it notices the end of the process within this."""
RETRY_S = 2.0

_log = logging.getLogger(__name__)

_OURSELVES = secrets.token_hex(8)


def announce(session: Session) -> None:
    """Tell the others, if and when the transaction commits."""
    if session.get_bind().dialect.name == "postgresql":
        session.execute(sa.select(sa.func.pg_notify(CHANNEL, _OURSELVES)))


class Listener:
    """Calls back for each announcement of another process; on SQLite it does nothing."""

    def __init__(self, *, database: engine.Database, on_news: Callable[[], None]) -> None:
        self._database = database
        self._on_news = on_news
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="signals", daemon=True)

    def start(self) -> None:
        if not self._database.is_sqlite:
            self._thread.start()

    def stop(self) -> None:
        """End within about a second."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(timeout=3 * WAIT_S)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._listen()
            except (exc.SQLAlchemyError, psycopg.Error) as error:
                _log.debug("not listening for news of other control planes", extra={"error": str(error)})
                self._stop.wait(RETRY_S)

    def _listen(self) -> None:
        with self._database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.exec_driver_sql(f"LISTEN {CHANNEL}")
            driver: Any = connection.connection.driver_connection
            try:
                while not self._stop.is_set():
                    for notice in driver.notifies(timeout=WAIT_S, stop_after=1):
                        if notice.payload != _OURSELVES:
                            self._on_news()
            finally:
                # It listens: the pool must not lend it to anybody else.
                connection.invalidate()
