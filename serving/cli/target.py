"""Where a command works: the local stack of a home, or addresses from the environment."""

from __future__ import annotations

import getpass
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from model_store import settings as store_settings
from serving.cli import errors
from serving.cli.client import ControlPlane
from serving.local.home import Home, Stack


@dataclass(frozen=True, kw_only=True)
class Target:
    """Addresses are looked up when they are needed: a remote control plane needs no home."""

    home: Home
    environment: Mapping[str, str]

    @classmethod
    def of(cls, home: Path) -> Target:
        return cls(home=Home(home), environment=os.environ)

    @property
    def control_url(self) -> str:
        return (self.environment.get("SLIPWAY_CONTROL_URL") or self._stack("control plane").control_plane).rstrip("/")

    @property
    def gateway_url(self) -> str:
        return (self.environment.get("SLIPWAY_GATEWAY_URL") or self._stack("gateway").gateway).rstrip("/")

    @property
    def store(self) -> store_settings.Settings:
        if store_settings.configured(self.environment):
            return store_settings.Settings.from_env(self.environment)
        return self._stack("store").store.settings()

    @property
    def worker_python(self) -> str | None:
        return self.environment.get("SLIPWAY_WORKER_PYTHON") or None

    def control_plane(self) -> ControlPlane:
        return ControlPlane(self.control_url, actor=_actor(self.environment))

    def _stack(self, what: str) -> Stack:
        known = self.home.read()
        if known is None:
            variable = {"control plane": "SLIPWAY_CONTROL_URL", "gateway": "SLIPWAY_GATEWAY_URL"}
            raise errors.Unavailable(
                f'no stack was ever started in {self.home}; "slipway up -d" starts one, '
                f"or name a {what} elsewhere with {variable.get(what, 'SLIPWAY_STORE')}"
            )
        return known


def _actor(environment: Mapping[str, str]) -> str:
    if named := environment.get("SLIPWAY_ACTOR"):
        return named
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "anonymous"
