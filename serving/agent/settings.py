"""What an agent is told by its environment."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from serving.agent import errors
from serving.torchserve import ports

GIB = 1024**3


@dataclass(frozen=True, kw_only=True)
class Settings:
    """One replica's settings. Sizes are bytes, durations seconds."""

    control_url: str
    pool: str
    replica: str
    home: Path
    host: str = "127.0.0.1"
    """Address that the agent's own port is bound to."""
    port: int = 0
    """Port of /healthz, /readyz and /metrics; 0 takes a free one."""
    advertise_host: str = "127.0.0.1"
    """Address under which gateways reach this replica."""
    bind_host: str = "127.0.0.1"
    """Address that inference ports are bound to."""
    cache_limit_bytes: int = 20 * GIB
    worker_python: str = sys.executable
    cores: int = 1
    gpus: int = 0
    drain_timeout_s: float = 60.0
    port_range: tuple[int, int] = ports.DEFAULT_RANGE

    @property
    def servers(self) -> Path:
        """A folder for each server process."""
        return self.home / "servers"

    @property
    def cache(self) -> Path:
        return self.home / "cache"

    @classmethod
    def from_env(cls, environment: Mapping[str, str] | None = None) -> Settings:
        """Read the environment.

        Raises:
            SettingsError: naming the variable, what it holds and what it should.
        """
        read = _Reader(os.environ if environment is None else environment)
        advertise = read.text("SLIPWAY_ADVERTISE_HOST", "127.0.0.1")
        return cls(
            control_url=read.text("SLIPWAY_CONTROL_URL").rstrip("/"),
            pool=read.text("SLIPWAY_POOL", "cpu"),
            replica=read.text("SLIPWAY_REPLICA", socket.gethostname()),
            home=Path(read.text("SLIPWAY_AGENT_HOME")).absolute(),
            host=read.text("SLIPWAY_AGENT_HOST", advertise),
            port=read.number("SLIPWAY_AGENT_PORT", 0, most=65_535),
            advertise_host=advertise,
            bind_host=read.text("SLIPWAY_BIND_HOST", advertise),
            cache_limit_bytes=read.number("SLIPWAY_CACHE_LIMIT_BYTES", 20 * GIB),
            worker_python=read.text("SLIPWAY_WORKER_PYTHON", sys.executable),
            cores=max(1, read.number("SLIPWAY_CORES", _cores())),
            gpus=read.number("SLIPWAY_GPUS", 0) if read.has("SLIPWAY_GPUS") else _gpus(),
            drain_timeout_s=float(read.number("SLIPWAY_DRAIN_TIMEOUT_S", 60)),
            port_range=read.span("SLIPWAY_PORT_RANGE", ports.DEFAULT_RANGE),
        )


class _Reader:
    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment

    def has(self, name: str) -> bool:
        return bool(self._environment.get(name))

    def text(self, name: str, default: str | None = None) -> str:
        value = self._environment.get(name) or default
        if value is None:
            raise errors.SettingsError(f"{name} is not set; the agent cannot do without it")
        return value

    def number(self, name: str, default: int, *, least: int = 0, most: int = 2**63) -> int:
        value = self._environment.get(name)
        if not value:
            return default
        if not value.lstrip("-").isdigit() or not least <= int(value) <= most:
            raise errors.SettingsError(f"{name} is {value!r}; expected a whole number from {least} to {most}")
        return int(value)

    def span(self, name: str, default: tuple[int, int]) -> tuple[int, int]:
        value = self._environment.get(name)
        if not value:
            return default
        first, _, last = value.partition("-")
        if not (first.isdigit() and last.isdigit() and 1024 <= int(first) < int(last) <= 65_535):
            raise errors.SettingsError(f"{name} is {value!r}; expected FIRST-LAST, for example 20000-30000")
        return int(first), int(last)


def _cores() -> int:
    """Cores that this process may use: a container's share of CPU time, if it is limited, else its affinity."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return usable if quota == "max" else max(1, min(usable, int(quota) // int(period)))
    except (OSError, ValueError):
        return usable


def _gpus() -> int:
    """GPUs that TorchServe would find: it too asks nvidia-smi, and without that serves on the CPU and says nothing."""
    if not shutil.which("nvidia-smi"):
        return 0
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return 0
    return sum(line.startswith("GPU ") for line in listed.splitlines())
