"""Turn a spec into an archive, the same bytes for the same content; :mod:`model_store.unpacking` is the way back.

The skeleton (manifest, entry) is made by torch-model-archiver in its ``no-archive`` form. The archiver flattens
folders, drops hidden ones, copies every file twice and empties ``<temp>/<model name>`` first; so it runs in a process
of its own, with a private temp folder and an empty stand-in for the weights, and the files are linked in afterwards.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from model_store import errors, faults, layout, manifest, safety, spec, unpacking

Limits = unpacking.Limits
unpack = unpacking.unpack

COPY_BYTES = 1024 * 1024
EPOCH = (1980, 1, 1, 0, 0, 0)
"""The earliest time a zip can hold: every entry carries it, so that packing twice gives the same digest."""

LINK_FROM_BYTES = 1024 * 1024
"""Files from here on are hard-linked into the staging folder where the file system allows."""

ARCHIVER_TIMEOUT_S = 60
_MODE = (stat.S_IFREG | 0o644) << 16


@dataclass(frozen=True, kw_only=True)
class Staged:
    """A folder laid out as the archive will be.

    Attributes:
        files: names in the archive, sorted; whatever else appears in the folder is not packed.
    """

    spec: spec.Spec
    folder: Path
    config: manifest.ArchiveConfig
    files: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Packed:
    path: Path
    digest: str
    size_bytes: int
    unpacked_bytes: int
    config: manifest.ArchiveConfig


def stage(source: spec.Spec, folder: Path) -> Staged:
    """Lay the archive out in ``folder``, which must be empty or missing.

    Large files may be hard links to the originals: read them, do not write to them.

    Raises:
        SpecError: the weights are still missing (see :func:`model_store.spec.with_weights`).
        UnsafeWeights: a checkpoint would not load with ``weights_only=True``.
        ArchiveError: torch-model-archiver failed.
        NoSpace: the disk is full.
    """
    if source.missing_weights is not None:
        raise errors.SpecError(
            file=source.source,
            field=f"models.{source.name}.model_file",
            problem=f"{source.missing_weights} does not lie beside this file",
            fix=f"put it there, or into {source.store_url}",
        )
    safety.require_safe(source.files)
    config = source.config()
    with faults.translated(doing=f"stage {source.name}", where=str(folder)):
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise errors.ArchiveError(f"{folder} is not empty; stage into a new folder")
        _skeleton(source, folder)
        (folder / manifest.CONFIG_FILE).write_text(
            json.dumps(config.model_dump(mode="json"), indent=1, sort_keys=True, ensure_ascii=False) + "\n",
            encoding="utf-8",
        )
        for name, path in source.files.items():
            _bring(path, folder / name)
    names = {layout.MAR_MANIFEST, manifest.ENTRY_FILE, manifest.CONFIG_FILE, *source.files}
    return Staged(spec=source, folder=folder, config=config, files=tuple(sorted(names)))


def pack(staged: Staged, destination: Path) -> Packed:
    """Write the archive; ``destination`` appears only when it is complete.

    The digest is taken from the finished file, out of the page cache: zipfile goes back to write each entry's CRC, so
    the bytes cannot be hashed as they are written. Nothing is held in memory.

    Raises:
        ArchiveError: a staged file vanished or changed meanwhile.
        NoSpace: the disk is full.
    """
    total = sum((staged.folder / name).stat().st_size for name in staged.files)
    temporary = destination.with_name(f".{destination.name}.{os.getpid()}")
    with faults.translated(doing=f"pack {staged.spec.name}", where=str(destination.parent)):
        faults.require_space(destination.parent, total, doing=f"pack {staged.spec.name}")
        try:
            with zipfile.ZipFile(temporary, "x", zipfile.ZIP_STORED, allowZip64=True) as archive:
                for name in staged.files:
                    _write(archive, name, staged.folder / name)
            with temporary.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            size = temporary.stat().st_size
            temporary.replace(destination)
        finally:
            temporary.unlink(missing_ok=True)
    return Packed(path=destination, digest=digest, size_bytes=size, unpacked_bytes=total, config=staged.config)


def _write(archive: zipfile.ZipFile, name: str, path: Path) -> None:
    info = zipfile.ZipInfo(name, date_time=EPOCH)
    info.create_system = 3
    info.external_attr = _MODE
    info.file_size = path.stat().st_size  # decides whether the entry needs zip64, before it is written
    with path.open("rb") as source, archive.open(info, "w") as target:
        shutil.copyfileobj(source, target, COPY_BYTES)


def _skeleton(source: spec.Spec, folder: Path) -> None:
    """``MAR-INF/MANIFEST.json`` and the entry, as torch-model-archiver writes them, without the time of day."""
    with tempfile.TemporaryDirectory(prefix="slipway-archiver-") as private:
        work = Path(private)
        entry = work / manifest.ENTRY_FILE
        entry.write_text(layout.ENTRY_SOURCE, encoding="utf-8")
        command = [sys.executable, "-m", "model_archiver.model_packaging"]
        command += ["--model-name", source.name, "--version", "1", "--handler", str(entry)]
        command += ["--archive-format", "no-archive", "--export-path", str(work / "out")]
        (work / "out").mkdir()
        (work / "tmp").mkdir()
        for option, name in (("--serialized-file", _weights(source)), ("--model-file", _architecture(source))):
            if name is not None:
                stand_in = work / "stand-ins" / name
                stand_in.parent.mkdir(parents=True, exist_ok=True)
                stand_in.touch()
                command += [option, str(stand_in)]
        try:
            done = subprocess.run(
                command,
                env=os.environ | {"TMPDIR": str(work / "tmp")},
                capture_output=True,
                text=True,
                timeout=ARCHIVER_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise errors.ArchiveError(f"torch-model-archiver did not end within {ARCHIVER_TIMEOUT_S} s") from error
        made = work / "out" / source.name / layout.MAR_MANIFEST
        if done.returncode != 0 or not made.exists():
            raise errors.ArchiveError(f"torch-model-archiver failed ({done.returncode}): {done.stderr.strip()[-2000:]}")
        document: dict[str, Any] = json.loads(made.read_text(encoding="utf-8"))
    document.pop("createdOn", None)
    (folder / layout.MAR_INF).mkdir()
    (folder / layout.MAR_MANIFEST).write_text(json.dumps(document, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    (folder / manifest.ENTRY_FILE).write_text(layout.ENTRY_SOURCE, encoding="utf-8")


def _weights(source: spec.Spec) -> str | None:
    """The weights for TorchServe's own manifest: handlers written for it read ``serializedFile``."""
    return source.model_file if source.model_file in source.files else None


def _architecture(source: spec.Spec) -> str | None:
    """A packed architecture is TorchServe's ``modelFile``."""
    if source.architecture is None or not source.architecture.startswith("file:"):
        return None
    return source.architecture.removeprefix("file:").partition(":")[0]


def _bring(path: Path, target: Path) -> None:
    """Hard-link what is large, copy the rest (and what cannot be linked: another file system, another owner)."""
    target.parent.mkdir(parents=True, exist_ok=True)
    real = path.resolve()
    if real.stat().st_size >= LINK_FROM_BYTES:
        try:
            os.link(real, target)
        except OSError:
            pass
        else:
            return
    shutil.copyfile(real, target)
