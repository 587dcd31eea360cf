"""One real SeaweedFS for this folder; each test gets a bucket of its own."""

from __future__ import annotations

import hashlib
import random
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest

from model_store import manifest, settings, store
from tests.support import faulty_proxy, seaweed

MIB = 1024 * 1024


@dataclass(frozen=True)
class Archive:
    """Random bytes that stand for an archive, and their manifest."""

    path: Path
    document: manifest.Manifest

    @property
    def digest(self) -> str:
        return self.document.digest

    @property
    def size(self) -> int:
        return self.document.size_bytes


@pytest.fixture(scope="session")
def weed() -> Iterator[seaweed.Seaweed]:
    with seaweed.running() as running:
        yield running


@pytest.fixture
def bucket(weed: seaweed.Seaweed) -> str:
    name = f"models-{uuid.uuid4().hex[:12]}"
    weed.client().create_bucket(Bucket=name)
    return name


@pytest.fixture
def make_settings(weed: seaweed.Seaweed, bucket: str) -> Callable[..., settings.Settings]:
    """Settings for the test's bucket, impatient enough for tests of faults."""

    def make(**overrides: object) -> settings.Settings:
        arguments: dict[str, object] = {
            "bucket": bucket,
            "prefix": "team/",
            "endpoint": weed.endpoint,
            "region": weed.region,
            "addressing": "path",
            "access_key": weed.access_key,
            "secret_key": weed.secret_key,
            "part_bytes": 5 * MIB,
            "workers": 2,
            "connect_timeout_s": 2.0,
            "read_timeout_s": 2.0,
            "attempts": 2,
        }
        return settings.Settings(**(arguments | overrides))  # type: ignore[arg-type]

    return make


@pytest.fixture
def bucket_store(make_settings: Callable[..., settings.Settings]) -> store.Store:
    return store.Store(make_settings())


@pytest.fixture
def proxy(weed: seaweed.Seaweed) -> Iterator[faulty_proxy.FaultyProxy]:
    with faulty_proxy.proxying(weed.port) as running:
        yield running


@pytest.fixture
def proxied(make_settings: Callable[..., settings.Settings], proxy: faulty_proxy.FaultyProxy) -> store.Store:
    """The same bucket through the proxy."""
    return store.Store(make_settings(endpoint=proxy.endpoint))


@pytest.fixture
def make_archive(tmp_path: Path) -> Callable[..., Archive]:
    def make(size: int = 23 * MIB + 17, *, seed: int = 0, model: str = "digits") -> Archive:
        body = random.Random(seed).randbytes(size)
        path = tmp_path / f"{model}-{seed}-{size}.mar"
        path.write_bytes(body)
        digest = hashlib.sha256(body).hexdigest()
        document = manifest.Manifest(
            model=model,
            digest=digest,
            size_bytes=size,
            unpacked_bytes=size,
            archive_key=store.archive_key(digest),
            config=manifest.ArchiveConfig(handler="image_classifier"),
            provenance=manifest.Provenance(
                created_at=datetime(2026, 1, 1, tzinfo=UTC), created_by="test", host="test", slipway="0"
            ),
        )
        return Archive(path=path, document=document)

    return make
