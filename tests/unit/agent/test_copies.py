from __future__ import annotations

import hashlib
import io
import zipfile
from pathlib import Path

import pytest

from model_store import errors
from model_store.cache import Cache
from serving.agent import copies
from serving.agent.copies import StoreCopies
from serving.domain import wire
from tests.unit.agent.world import version


class Bucket:
    """A store that holds one archive in memory."""

    def __init__(self, body: bytes) -> None:
        self.body = body
        self.fetches = 0

    def fetch(self, digest: str, size_bytes: int, destination: Path, *, progress: object = None) -> None:
        self.fetches += 1
        if hashlib.sha256(self.body).hexdigest() != digest:
            raise errors.DigestMismatch(f"{digest} is something else")
        destination.write_bytes(self.body)


def archive(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as packed:
        for name, body in files.items():
            packed.writestr(name, body)
    return buffer.getvalue()


BODY = archive({"MAR-INF/MANIFEST.json": b"{}", "weights.bin": b"w"})


def assigned(body: bytes = BODY, *, unpacked: int = 3) -> wire.AssignedVersion:
    document = version(1).manifest.model_copy(
        update={"digest": hashlib.sha256(body).hexdigest(), "size_bytes": len(body), "unpacked_bytes": unpacked}
    )
    return wire.AssignedVersion(model="resnet", version=1, manifest=document)


def make(tmp_path: Path, bucket: Bucket) -> StoreCopies:
    store: object = bucket
    return StoreCopies(
        servers=tmp_path / "servers",
        cache=Cache(tmp_path / "cache", 1_000_000),
        store=store,  # pyright: ignore[reportArgumentType]
    )


def test_a_copy_is_made_once_and_then_found(tmp_path: Path) -> None:
    bucket = Bucket(BODY)
    made = make(tmp_path, bucket)
    made.prepare(assigned())
    made.prepare(assigned())
    root = made.root(assigned())
    assert (root / "model" / "weights.bin").read_bytes() == b"w"
    assert bucket.fetches == 1
    assert copies.read_version(root) == assigned()


def test_an_archive_with_another_digest_leaves_no_copy(tmp_path: Path) -> None:
    made = make(tmp_path, Bucket(BODY + b"x"))
    with pytest.raises(errors.DigestMismatch):
        made.prepare(assigned())
    assert not made.complete(assigned())


def test_an_archive_that_unpacks_to_more_than_was_registered_is_refused(tmp_path: Path) -> None:
    made = make(tmp_path, Bucket(BODY))
    with pytest.raises(errors.ArchiveError):
        made.prepare(assigned(unpacked=1))
    assert not made.complete(assigned())


def test_an_interrupted_copy_is_made_again(tmp_path: Path) -> None:
    made = make(tmp_path, Bucket(BODY))
    partial = made.root(assigned()) / "model.partial"
    partial.mkdir(parents=True)
    (partial / "half").write_bytes(b"h")
    made.prepare(assigned())
    assert not (made.root(assigned()) / "model" / "half").exists()


def test_a_sweep_removes_what_nobody_holds(tmp_path: Path) -> None:
    made = make(tmp_path, Bucket(BODY))
    made.prepare(assigned())
    stale = tmp_path / "servers" / "old-1-abc"
    stale.mkdir()
    made.sweep([made.root(assigned())])
    assert [entry.name for entry in (tmp_path / "servers").iterdir()] == [made.root(assigned()).name]


def test_a_folder_s_name_holds_nothing_that_torchserve_would_refuse(tmp_path: Path) -> None:
    named = assigned().model_copy(update={"model": "a..b"})
    assert ".." not in str(make(tmp_path, Bucket(BODY)).root(named))
