from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from serving.api import app, settings
from tests.support import worlds


class Archives:
    """A model store that holds what a test says."""

    def __init__(self) -> None:
        self.sizes: dict[str, int] = {}
        self.error: Exception | None = None

    def head(self, digest: str) -> int | None:
        if self.error is not None:
            raise self.error
        return self.sizes.get(digest)

    def hold(self, version: int, size_bytes: int | None = None) -> None:
        manifest = worlds.manifest(version=version)
        self.sizes[manifest.digest] = manifest.size_bytes if size_bytes is None else size_bytes


@pytest.fixture
def archives() -> Archives:
    return Archives()


@pytest.fixture
def client(tmp_path: Path, archives: Archives) -> Iterator[TestClient]:
    chosen = settings.Settings(database_url=f"sqlite:///{tmp_path}/control.db", max_body_bytes=64 * 1024)
    with TestClient(app.create(chosen, archives=archives), raise_server_exceptions=False) as client:
        yield client
