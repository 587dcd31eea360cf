"""The parts of an archive that a worker reads: ``slipway.json`` and, on a replica, ``slipway.runtime.json``."""

from __future__ import annotations

import importlib.metadata
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement

from handlers import errors

CONFIG_FILE = "slipway.json"
RUNTIME_FILE = "slipway.runtime.json"

HANDLER_API = 1
"""Newest version of the archive's contract that is understood here."""


@dataclass(frozen=True, kw_only=True)
class Archive:
    """An unpacked archive, as its handler sees it; see ``ArchiveConfig`` and ``Runtime`` of the manifest's schema."""

    folder: Path
    handler: str
    model_file: str | None = None
    architecture: str | None = None
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    signature: dict[str, Any] = field(default_factory=dict[str, Any])
    golden: list[dict[str, str]] = field(default_factory=list[dict[str, str]])
    requirements: list[str] = field(default_factory=list[str])
    model: str = ""
    version: int = 0
    threads: int | None = None
    max_response_bytes: int = 64 * 1024 * 1024

    def path(self, name: str, *, what: str) -> Path:
        """A file or folder of the archive.

        Raises:
            LoadError: it is missing, or lies outside.
        """
        path = (self.folder / name).resolve()
        if not path.is_relative_to(self.folder.resolve()):
            raise errors.LoadError(f"{what} {name!r} lies outside of the archive; name a file inside it")
        if not path.exists():
            raise errors.LoadError(f"{what} {name!r} is not in the archive; add it to model.yaml and push again")
        return path


def read(folder: Path) -> Archive:
    """Read the archive's own description.

    Raises:
        LoadError: it is missing, broken or of a newer kind.
    """
    file = folder / CONFIG_FILE
    try:
        config: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise errors.LoadError(f"{CONFIG_FILE} is missing: this archive was not made by slipway push") from None
    except ValueError as error:
        raise errors.LoadError(f"{CONFIG_FILE} is broken: {error}") from error
    if config.get("handler_api", 0) > HANDLER_API:
        raise errors.LoadError(
            f"the archive asks for handler API {config['handler_api']}, this worker knows "
            f"{HANDLER_API}; upgrade Slipway"
        )
    try:
        runtime: dict[str, Any] = json.loads((folder / RUNTIME_FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        runtime = {}
    return Archive(
        folder=folder,
        handler=config["handler"],
        model_file=config.get("model_file"),
        architecture=config.get("architecture"),
        options=config.get("options") or {},
        signature=config.get("signature") or {},
        golden=config.get("golden") or [],
        requirements=config.get("requirements") or [],
        model=runtime.get("model", ""),
        version=runtime.get("version", 0),
        threads=runtime.get("threads"),
        max_response_bytes=runtime.get("max_response_bytes", Archive.max_response_bytes),
    )


def check_requirements(lines: list[str]) -> None:
    """Refuse to load when the environment lacks what the archive asks for.

    Raises:
        LoadError: names every requirement that is not met, and what is installed instead.
    """
    missing: list[str] = []
    for line in lines:
        try:
            requirement = Requirement(line)
        except InvalidRequirement as error:
            missing.append(f"{line} (no valid requirement: {error})")
            continue
        if requirement.marker is not None and not requirement.marker.evaluate():
            continue
        try:
            installed = importlib.metadata.version(requirement.name)
        except importlib.metadata.PackageNotFoundError:
            missing.append(f"{line} (not installed)")
            continue
        if not requirement.specifier.contains(installed, prereleases=True):
            missing.append(f"{line} (installed: {installed})")
    if missing:
        raise errors.LoadError(
            f"the replica's environment lacks what the model requires: {'; '.join(missing)}; install it into the "
            "workers' Python environment or image, or change the requirements in model.yaml"
        )
