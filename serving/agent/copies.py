"""Private copies of archives: verified before a byte is used, complete or not there at all.

A server process loads from its own copy and never from the shared cache, so the cache may evict what it likes and
nobody can change files under a process that serves.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from pydantic import ValidationError

from model_store import archive
from model_store.cache import Cache
from model_store.store import Store
from serving.domain import wire
from serving.torchserve import record

VERSION_FILE = "version.json"


class Copies(Protocol):
    """Where private copies come from."""

    def prepare(self, version: wire.AssignedVersion) -> None:
        """Put a verified copy in place; does nothing when it is there."""
        ...

    def discard(self, version: wire.AssignedVersion) -> None: ...

    def root(self, version: wire.AssignedVersion) -> Path: ...

    def sweep(self, keep: Iterable[Path]) -> None: ...


class Folders:
    """The layout below the agent's home, without the fetching."""

    def __init__(self, servers: Path) -> None:
        self._servers = servers

    def root(self, version: wire.AssignedVersion) -> Path:
        """The folder of a version's server process. TorchServe takes no path that holds "..": a name may."""
        name = version.model.replace("..", "__")
        return self._servers / f"{name}-{version.version}-{version.manifest.digest[:12]}"

    def complete(self, version: wire.AssignedVersion) -> bool:
        root = self.root(version)
        known = read_version(root)
        return known is not None and known.manifest.digest == version.manifest.digest and (root / "model").is_dir()

    def discard(self, version: wire.AssignedVersion) -> None:
        shutil.rmtree(self.root(version), ignore_errors=True)

    def sweep(self, keep: Iterable[Path]) -> None:
        """Remove every folder but these: left over from an agent that was killed."""
        kept = set(keep)
        for root in self._servers.iterdir() if self._servers.is_dir() else ():
            if root not in kept:
                shutil.rmtree(root, ignore_errors=True)


class StoreCopies(Folders):
    """Copies out of the model store, by way of the cache that all agents of a machine share."""

    def __init__(self, *, servers: Path, cache: Cache, store: Store) -> None:
        super().__init__(servers)
        self._cache = cache
        self._store = store

    def prepare(self, version: wire.AssignedVersion) -> None:
        """Fetch, verify and unpack; blocks, so call it from a thread.

        Raises:
            ModelStoreError: the archive could not be had, or is not what was registered.
            OSError: the copy could not be written.
        """
        if self.complete(version):
            return
        root = self.root(version)
        manifest = version.manifest
        partial = root / "model.partial"
        shutil.rmtree(partial, ignore_errors=True)
        root.mkdir(parents=True, exist_ok=True)
        lease = self._cache.acquire(self._store, manifest.digest, manifest.size_bytes)
        try:
            archive.unpack(lease.archive, partial, limits=archive.Limits(unpacked_bytes=manifest.unpacked_bytes))
        finally:
            lease.release()
        write_version(root, version)
        shutil.rmtree(root / "model", ignore_errors=True)
        partial.rename(root / "model")


def write_version(root: Path, version: wire.AssignedVersion) -> None:
    record.write_atomically(root / VERSION_FILE, version.model_dump_json())


def read_version(root: Path) -> wire.AssignedVersion | None:
    """What a folder was made for; None when nobody can tell."""
    try:
        return wire.AssignedVersion.model_validate_json((root / VERSION_FILE).read_bytes())
    except (OSError, ValidationError):
        return None
