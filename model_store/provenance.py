"""Who made a version, where, from what; and the manifest that says so."""

from __future__ import annotations

import getpass
import platform
import subprocess
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from model_store import archive, manifest, spec, store

FRAMEWORKS = ("torch", "torchvision", "transformers", "safetensors", "tokenizers", "numpy", "torchserve")
GIT_TIMEOUT_S = 5


def collect(source: Path | None = None) -> manifest.Provenance:
    """What can be known about this machine and the folder of ``source``; versions are read without importing."""
    return manifest.Provenance(
        created_at=datetime.now(UTC),
        created_by=_user(),
        host=platform.node(),
        source=None if source is None else source.name,
        git_commit=None if source is None else _git_commit(source.resolve().parent),
        slipway=_version("slipway") or "unknown",
        frameworks={name: found for name in (*FRAMEWORKS, "python") if (found := _version(name))},
    )


def manifest_for(
    packed: archive.Packed,
    source: spec.Spec,
    *,
    golden: Iterable[manifest.GoldenOutput] = (),
    signature: manifest.Signature | None = None,
    frameworks: dict[str, str] | None = None,
) -> manifest.Manifest:
    """The manifest of a packed spec.

    Args:
        golden: what a replay answered; an input whose author gave an ``expected`` keeps the author's.
        frameworks: versions that the replay reported; they win over this environment's.
    """
    outputs = {each.file: each for each in golden}
    for each in source.golden:
        if each.expected is not None:
            outputs[each.file] = manifest.GoldenOutput(file=each.file, expected=each.expected, tolerance=each.tolerance)
    made = collect(source.source)
    config = packed.config if signature is None else packed.config.model_copy(update={"signature": signature})
    return manifest.Manifest(
        model=source.name,
        description=source.description,
        digest=packed.digest,
        size_bytes=packed.size_bytes,
        unpacked_bytes=packed.unpacked_bytes,
        archive_key=store.archive_key(packed.digest),
        config=config,
        serving=source.serving,
        pool=source.pool,
        golden=[outputs[name] for name in sorted(outputs)],
        metrics=dict(source.metrics),
        provenance=made.model_copy(update={"frameworks": made.frameworks | (frameworks or {})}),
    )


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container whose user id has no name
        return "unknown"


def _version(name: str) -> str | None:
    if name == "python":
        return platform.python_version()
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _git_commit(folder: Path) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), "rev-parse", "HEAD"],
            capture_output=True,
            text=True,
            timeout=GIT_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None
