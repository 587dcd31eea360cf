"""Verified archives on this machine's disk, shared by all its processes.

::

    <root>/archives/<digest>/archive.mar       read-only; appears only after its digest proved right
    <root>/archives/<digest>/archive.mar.partial, .parts    a download under way, or one to be resumed
    <root>/archives/<digest>/reserved          bytes that a download under way will need
    <root>/archives/<digest>/verified.json     what was verified: see below
    <root>/archives/<digest>/used              its time is that of the last acquire
    <root>/locks/cache.lock, <digest>.fill     one process makes room, one process fills a digest
    <root>/locks/<digest>.lease                flock: shared by each holder, so a killed holder lets go by itself

An archive is hashed once, while it is downloaded, and trusted afterwards as long as its size, modification time and
inode are the noted ones *and the machine has not booted since*: a power cut may lose bytes of a file whose name
survived, so the first use after a boot hashes it again (about 1 s per GB). Nobody has to wait for fsync that way.

Least recently used archives make room. One that a living process holds, or fills, is never removed.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import shutil
import time
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import filelock

from model_store import download, errors, faults, parts

logger = logging.getLogger(__name__)

ARCHIVE = "archive.mar"
RESERVED = "reserved"
USED = "used"
VERIFIED = "verified.json"
LOCK_POLL_S = 0.1
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Source(Protocol):
    """The part of :class:`model_store.store.Store` that the cache needs."""

    def fetch(
        self, digest: str, size_bytes: int, destination: Path, *, progress: parts.Progress | None = None
    ) -> None: ...


class Lease:
    """A hold on a cached archive; until it is released, or its process ends, the archive stays where it is."""

    def __init__(self, *, digest: str, archive: Path, descriptor: int) -> None:
        self.digest = digest
        self.archive = archive
        self._descriptor: int | None = descriptor

    def release(self) -> None:
        """Let go. Safe to repeat."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One digest in the cache, whole or not."""

    digest: str
    bytes: int
    used_ns: int
    complete: bool


class Cache:
    """Processes and threads may share one root; each makes its own ``Cache``."""

    def __init__(self, root: Path, limit_bytes: int) -> None:
        self.root = root
        self.limit_bytes = limit_bytes
        self._archives = root / "archives"
        self._locks = root / "locks"
        for folder in (root, self._archives, self._locks):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def acquire(
        self,
        store: Source,
        digest: str,
        size_bytes: int,
        *,
        progress: parts.Progress | None = None,
        timeout_s: float = -1,
    ) -> Lease:
        """Have the archive on disk, verified, and hold it there.

        Waits while another process fetches the same digest. A failed fetch leaves what it got: the next acquire, of
        any process, resumes.

        Args:
            timeout_s: how long to wait for another process's fetch; negative: for ever.

        Raises:
            CacheTooSmall: the limit cannot hold it beside what is in use.
            StoreTimeout: another process still fetches it.
            NoSpace, DigestMismatch, StoreError: as :meth:`model_store.store.Store.fetch`.
        """
        if size_bytes > self.limit_bytes:
            raise errors.CacheTooSmall(
                f"archive {digest} has {size_bytes} bytes and the cache in {self.root} is limited to"
                f" {self.limit_bytes}; raise SLIPWAY_CACHE_LIMIT_BYTES"
            )
        with faults.translated(doing=f"cache {digest}", where=str(self.root)):
            fill = self._fill_lock(digest, timeout_s=timeout_s)
            try:
                fill.acquire()
            except filelock.Timeout as error:
                raise errors.StoreTimeout(
                    f"another process has been fetching {digest} into {self.root} for {timeout_s} s; try again"
                ) from error
            with contextlib.ExitStack() as undo:
                undo.callback(fill.release)
                descriptor = self._hold(digest)
                lease = Lease(digest=digest, archive=self._archives / digest / ARCHIVE, descriptor=descriptor)
                with contextlib.ExitStack() as failed:
                    failed.callback(lease.release)
                    if not self._trusted(digest, size_bytes):
                        self._fill(store, digest, size_bytes, progress)
                    self._note_used(digest)
                    failed.pop_all()
                return lease

    def entries(self) -> list[Entry]:
        """What the cache holds, the least recently used first."""
        found = [self._entry(folder) for folder in self._archives.iterdir() if folder.is_dir()]
        return sorted(found, key=lambda entry: entry.used_ns)

    def used_bytes(self) -> int:
        """Bytes of all archives, downloads under way counted in full."""
        return sum(entry.bytes for entry in self.entries())

    def _fill(self, store: Source, digest: str, size_bytes: int, progress: parts.Progress | None) -> None:
        """Under the fill lock: verify or fetch."""
        folder = self._archives / digest
        archive = folder / ARCHIVE
        if archive.exists():
            if archive.stat().st_size == size_bytes and _sha256(archive) == digest:
                self._note_verified(digest)
                return
            logger.warning("the cached archive %s is damaged; fetching it again", digest)
            archive.unlink()
        self._make_room(digest, size_bytes)
        store.fetch(digest, size_bytes, archive, progress=progress)
        archive.chmod(0o400)
        self._note_verified(digest)
        (folder / RESERVED).unlink(missing_ok=True)

    def _trusted(self, digest: str, size_bytes: int) -> bool:
        folder = self._archives / digest
        try:
            noted = json.loads((folder / VERIFIED).read_text())
            return bool(noted == _identity(folder / ARCHIVE) and noted["size"] == size_bytes)
        except (OSError, ValueError):
            return False

    def _note_verified(self, digest: str) -> None:
        folder = self._archives / digest
        private = folder / f".{VERIFIED}.{os.getpid()}"
        private.write_text(json.dumps(_identity(folder / ARCHIVE)))
        private.replace(folder / VERIFIED)

    def _note_used(self, digest: str) -> None:
        used = self._archives / digest / USED
        used.touch()
        now = time.time_ns()  # the kernel's own stamps are some milliseconds coarse
        os.utime(used, ns=(now, now))

    def _make_room(self, digest: str, size_bytes: int) -> None:
        """Reserve ``size_bytes`` for ``digest``, removing what nobody uses."""
        with filelock.FileLock(self._locks / "cache.lock", poll_interval=LOCK_POLL_S):
            others = [entry for entry in self.entries() if entry.digest != digest]
            used = sum(entry.bytes for entry in others)
            for entry in others:
                if used + size_bytes <= self.limit_bytes and self._fits_disk(digest, size_bytes):
                    break
                if self._evict(entry.digest):
                    used -= entry.bytes
            if used + size_bytes > self.limit_bytes:
                raise errors.CacheTooSmall(
                    f"archive {digest} needs {size_bytes} bytes and the cache in {self.root} is limited to"
                    f" {self.limit_bytes}, of which {used} are in use; raise SLIPWAY_CACHE_LIMIT_BYTES, or hold fewer"
                    " versions"
                )
            folder = self._archives / digest
            folder.mkdir(mode=0o700, exist_ok=True)
            (folder / RESERVED).write_text(str(size_bytes))

    def _fits_disk(self, digest: str, size_bytes: int) -> bool:
        partial = download.partial_path(self._archives / digest / ARCHIVE)
        present = partial.stat().st_blocks * 512 if partial.exists() else 0
        return shutil.disk_usage(self.root).free >= size_bytes - present + download.RESERVE_BYTES

    def _evict(self, digest: str) -> bool:
        """Remove an entry unless a living process holds or fills it."""
        fill = self._fill_lock(digest, timeout_s=0)
        try:
            fill.acquire()
        except filelock.Timeout:
            return False
        try:
            with self._exclusive(digest) as alone:
                if alone:
                    logger.info("removing %s from the cache to make room", digest)
                    # The marker first: a kill half-way must not leave a trusted entry.
                    (self._archives / digest / VERIFIED).unlink(missing_ok=True)
                    shutil.rmtree(self._archives / digest, ignore_errors=True)
                return alone
        finally:
            fill.release()

    def _fill_lock(self, digest: str, *, timeout_s: float) -> filelock.BaseFileLock:
        return filelock.FileLock(self._locks / f"{digest}.fill", timeout=timeout_s, poll_interval=LOCK_POLL_S)

    def _hold(self, digest: str) -> int:
        """A descriptor with a shared lock on the digest's lease file; closing it, or dying, lets go."""
        descriptor = self._open_lease(digest)
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        return descriptor

    @contextlib.contextmanager
    def _exclusive(self, digest: str) -> Generator[bool]:
        """Whether nobody holds the digest; nobody can begin to within the block, given the fill lock."""
        descriptor = self._open_lease(digest)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
            else:
                yield True
        finally:
            os.close(descriptor)

    def _open_lease(self, digest: str) -> int:
        return os.open(self._locks / f"{digest}.lease", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def _entry(self, folder: Path) -> Entry:
        archive = folder / ARCHIVE
        sizes = [_size(archive) or _size(download.partial_path(archive)) or 0]
        with contextlib.suppress(OSError, ValueError):
            sizes.append(int((folder / RESERVED).read_text()))
        used = folder / USED
        try:
            used_ns = (used if used.exists() else folder).stat().st_mtime_ns
        except FileNotFoundError:
            used_ns = 0
        return Entry(digest=folder.name, bytes=max(sizes), used_ns=used_ns, complete=archive.exists())


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _identity(archive: Path) -> dict[str, int | str]:
    """What must stay the same for an archive to be trusted without hashing it again."""
    found = archive.stat()
    return {"size": found.st_size, "mtime_ns": found.st_mtime_ns, "inode": found.st_ino, "boot": _boot_id()}


def _boot_id() -> str:
    try:
        return BOOT_ID.read_text().strip()
    except OSError:  # not Linux: one trust for ever
        return ""
