"""Open an archive without trusting it: everything is judged from the directory before the first byte is written.

The digest was verified before, so these rules protect against a publisher, not against the network: an archive may
have been pushed by somebody who wants to write elsewhere on the replica's disk or to fill it.
"""

from __future__ import annotations

import shutil
import stat
import struct
import tempfile
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

from model_store import errors, faults, layout

COPY_BYTES = 1024 * 1024
ENCRYPTED = 0x1
RATIO_FROM_BYTES = 1024 * 1024
"""Small entries may compress as well as they like."""

METHODS = {zipfile.ZIP_STORED: "stored", zipfile.ZIP_DEFLATED: "deflated"}


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What an archive may be at most.

    Attributes:
        unpacked_bytes: exactly this many, as its manifest says; ``None`` for an archive without a manifest.
        max_bytes: of all files together.
        max_ratio: unpacked over packed size of one entry.
    """

    unpacked_bytes: int | None = None
    max_bytes: int = 256 * 1024**3
    max_files: int = 100_000
    max_ratio: int = 200


def unpack(path: Path, folder: Path, *, limits: Limits | None = None) -> int:
    """Unpack into ``folder``, which appears only when it is complete and must not exist (or be empty).

    Every entry's CRC is checked on the way. Links, devices and permissions of the archive are never recreated: files
    are private to this user.

    Returns:
        Bytes written.

    Raises:
        UnsafeArchive: a name that leads elsewhere, a link, an encrypted or duplicate entry, or more than ``limits``.
        ArchiveError: truncated or damaged.
        NoSpace: the disk is full.
    """
    limits = limits or Limits()
    with faults.translated(doing=f"unpack {path.name}", where=str(folder)):
        try:
            with zipfile.ZipFile(path) as archive:
                entries = _judge(archive, path, limits)
                total = sum(entry.file_size for entry in entries)
                folder.parent.mkdir(parents=True, exist_ok=True)
                faults.require_space(folder.parent, total, doing=f"unpack {path.name}")
                _extract(archive, entries, folder)
        except (zipfile.BadZipFile, zlib.error, EOFError, struct.error) as error:
            raise errors.ArchiveError(
                f"{path} is truncated or damaged ({error}); fetch it again, or pack and push it again"
            ) from error
    return total


def _judge(archive: zipfile.ZipFile, path: Path, limits: Limits) -> list[zipfile.ZipInfo]:
    entries = archive.infolist()
    if len(entries) > limits.max_files:
        raise errors.UnsafeArchive(f"{path} holds {len(entries)} files; the limit is {limits.max_files}")
    files: dict[str, zipfile.ZipInfo] = {}
    folders: set[str] = set()
    for entry in entries:
        problem = _problem_with(entry, limits)
        if problem is not None:
            raise errors.UnsafeArchive(f"{path}: refused entry {entry.orig_filename!r}: {problem}")
        name = entry.filename.rstrip("/")
        if not entry.is_dir():
            if name in files:
                raise errors.UnsafeArchive(f"{path}: refused entry {name!r}: it stands there twice")
            files[name] = entry
        parts = name.split("/")
        folders.update("/".join(parts[:depth]) for depth in range(1, len(parts) + entry.is_dir()))
    for name in files.keys() & folders:
        raise errors.UnsafeArchive(f"{path}: refused entry {name!r}: it is both a file and a folder")
    total = sum(entry.file_size for entry in files.values())
    if total > limits.max_bytes:
        raise errors.UnsafeArchive(f"{path} unpacks to {total} bytes; the limit is {limits.max_bytes}")
    if limits.unpacked_bytes is not None and total != limits.unpacked_bytes:
        raise errors.UnsafeArchive(
            f"{path} unpacks to {total} bytes where its manifest says {limits.unpacked_bytes}; push the version again"
        )
    return list(files.values())


def _problem_with(entry: zipfile.ZipInfo, limits: Limits) -> str | None:
    kind = stat.S_IFMT(entry.external_attr >> 16)
    if not entry.filename:
        return layout.problem_with("")
    if entry.orig_filename != entry.filename and not entry.orig_filename.isprintable():
        return "the name holds a control character"
    problem = layout.problem_with(entry.filename.removesuffix("/") if entry.is_dir() else entry.filename)
    if problem is not None:
        return problem
    if kind != 0 and kind != (stat.S_IFDIR if entry.is_dir() else stat.S_IFREG):
        return "it is a link or a special file"
    if entry.flag_bits & ENCRYPTED:
        return "it is encrypted"
    if entry.compress_type not in METHODS:
        return f"its compression method {entry.compress_type} is neither stored nor deflated"
    if entry.compress_type == zipfile.ZIP_STORED and entry.compress_size != entry.file_size:
        return "it is stored, but its two sizes differ"
    if entry.file_size > max(RATIO_FROM_BYTES, entry.compress_size * limits.max_ratio):
        return f"it unpacks to more than {limits.max_ratio} times its packed size"
    return None


def _extract(archive: zipfile.ZipFile, entries: list[zipfile.ZipInfo], folder: Path) -> None:
    private = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        for entry in entries:
            target = private / entry.filename
            target.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(entry) as source, target.open("xb") as file:
                shutil.copyfileobj(source, file, COPY_BYTES)
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
        try:
            private.rename(folder)
        except OSError as error:
            if folder.exists():
                raise errors.ArchiveError(f"{folder} exists already; unpack into a new folder") from error
            raise
    finally:
        shutil.rmtree(private, ignore_errors=True)
