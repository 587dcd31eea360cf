"""The gateway's folder: what Envoy reads, and what a restart comes back from."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pydantic

from serving.domain import wire


@dataclass(frozen=True, kw_only=True)
class Layout:
    """``bootstrap.json``, ``config.json`` (the last configuration that Envoy took) and ``xds/``."""

    root: Path

    @property
    def bootstrap(self) -> Path:
        return self.root / "bootstrap.json"

    @property
    def config(self) -> Path:
        return self.root / "config.json"

    @property
    def cds(self) -> Path:
        return self.root / "xds" / "cds.json"

    @property
    def rds(self) -> Path:
        return self.root / "xds" / "rds.json"

    def create(self) -> None:
        """Make the folders; the whole is private, as the admin's address stands in it."""
        self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.cds.parent.mkdir(exist_ok=True)

    def last_good(self) -> wire.GatewayConfig | None:
        """The last configuration that Envoy took; ``None`` when there never was one, or the file is damaged."""
        try:
            return wire.GatewayConfig.model_validate_json(self.config.read_bytes())
        except (FileNotFoundError, pydantic.ValidationError):
            return None

    def remember(self, config: wire.GatewayConfig) -> None:
        """Keep a configuration as the last good one, across a loss of power."""
        replace(self.config, config.model_dump_json().encode(), durable=True)


def write(path: Path, document: dict[str, Any]) -> None:
    """Write JSON so that a reader (Envoy watches for renames) sees the old file or the new, never a part."""
    replace(path, orjson.dumps(document))


def replace(path: Path, content: bytes, *, durable: bool = False) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with temporary.open("wb") as file:
        file.write(content)
        if durable:
            file.flush()
            os.fsync(file.fileno())
    temporary.replace(path)


def discovery(version: str, resources: list[dict[str, Any]]) -> dict[str, Any]:
    """Envoy's ``DiscoveryResponse``; Envoy says ``version`` back once it has taken the file."""
    return {"version_info": version, "resources": resources}
