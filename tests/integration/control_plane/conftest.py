from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import control_plane, postgres


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[postgres.Postgres]:
    server = postgres.Postgres()
    yield server
    server.close()


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database of each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/control.db"
    return request.getfixturevalue("postgres_server").database()


@pytest.fixture
def client(database_url: str) -> Iterator[control_plane.Client]:
    with control_plane.in_thread(database_url) as client:
        yield client
