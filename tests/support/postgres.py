"""A real PostgreSQL from a wheel, on a Unix socket of its own; it can be stopped and started like one that fails."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
import uuid
import warnings
from pathlib import Path
from typing import Any

import psycopg


class Postgres:
    """One server. Its folder lies directly below the temp folder: socket paths must be short."""

    def __init__(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it remarks on a missing XDG_RUNTIME_DIR
            import pgserver

        self._folder = Path(tempfile.mkdtemp(prefix="slipway-pg-"))
        self._server: Any = pgserver.get_server(self._folder, cleanup_mode="stop")
        with psycopg.connect(self._server.get_uri(), autocommit=True) as connection:
            # What tests kill are processes, never the machine.
            connection.execute("ALTER SYSTEM SET fsync = off")
            connection.execute("SELECT pg_reload_conf()")

    def database(self) -> str:
        """The URL of a new, empty database."""
        name = f"test_{uuid.uuid4().hex[:12]}"
        with psycopg.connect(self._server.get_uri(), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")  # pyright: ignore[reportArgumentType]
        return f"postgresql+psycopg://postgres@/{name}?host={self._folder}"

    def stop(self) -> None:
        """As if its machine had lost power."""
        self._pg_ctl("stop", "-m", "immediate")

    def start(self) -> None:
        self._server.ensure_postgres_running()

    def close(self) -> None:
        with contextlib.suppress(subprocess.CalledProcessError):  # it is stopped already
            self._pg_ctl("stop", "-m", "immediate")
        self._server.cleanup()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _pg_ctl(self, *arguments: str) -> None:
        from pgserver import _commands

        _commands.pg_ctl(["-w", *arguments], pgdata=self._folder, user=self._server.system_user)
