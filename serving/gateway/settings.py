"""What the environment tells the gateway, read once."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from serving.gateway import errors

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """One gateway: an Envoy and its companion share these, folder included."""

    gateway: str = "gateway"
    control_url: str = "http://127.0.0.1:8090"
    folder: Path
    host: str = LOOPBACK
    port: int
    admin_port: int
    oip_port: int
    url: str = ""
    """Where clients reach it, as reported to the control plane."""

    max_request_bytes: int | None = None
    """Caps every model's own limit; ``None``: a model's limit stands as it is."""

    concurrency: int = 2
    """Envoy's worker threads."""

    access_log: str | None = None
    """A file for JSON lines, ``-`` for standard output, ``None`` for no access log (the fastest)."""

    @property
    def public_url(self) -> str:
        return self.url or f"http://{self.host}:{self.port}"

    @property
    def local_host(self) -> str:
        """Where this machine itself reaches the listener."""
        return LOOPBACK if self.host in ("0.0.0.0", "::") else self.host

    @classmethod
    def from_env(cls, environment: Mapping[str, str] = os.environ) -> Settings:
        """Read ``SLIPWAY_CONTROL_URL`` and ``SLIPWAY_GATEWAY_…``.

        Raises:
            InvalidSetting: one is missing or not a number.
        """

        def text(name: str, default: str | None = None) -> str:
            value = environment.get(name) or default
            if value is None:
                raise errors.InvalidSetting(f"{name} is not set; the gateway needs it")
            return value

        def number(name: str, default: str | None = None) -> int:
            value = text(name, default)
            if not value.isdigit():
                raise errors.InvalidSetting(f"{name} is {value!r}, expected a number")
            return int(value)

        limit = "SLIPWAY_GATEWAY_MAX_REQUEST_BYTES"
        return cls(
            gateway=text("SLIPWAY_GATEWAY_ID", "gateway"),
            control_url=text("SLIPWAY_CONTROL_URL", "http://127.0.0.1:8090").rstrip("/"),
            folder=Path(text("SLIPWAY_GATEWAY_DIR")).absolute(),
            host=text("SLIPWAY_GATEWAY_HOST", LOOPBACK),
            port=number("SLIPWAY_GATEWAY_PORT", "8080"),
            admin_port=number("SLIPWAY_GATEWAY_ADMIN_PORT"),
            oip_port=number("SLIPWAY_GATEWAY_OIP_PORT"),
            url=environment.get("SLIPWAY_GATEWAY_URL", ""),
            max_request_bytes=number(limit) if environment.get(limit) else None,
            concurrency=number("SLIPWAY_GATEWAY_CONCURRENCY", str(min(8, os.cpu_count() or 2))),
            access_log=environment.get("SLIPWAY_GATEWAY_ACCESS_LOG") or None,
        )
