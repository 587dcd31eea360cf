from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from handlers import runtime
from model_store import archive, spec

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
TIMEOUT_S = 240


@pytest.fixture(scope="session")
def examples() -> Path:
    return EXAMPLES


@pytest.fixture(scope="session")
def run_script() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run an example's script as a person does."""

    def run(script: str, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(EXAMPLES / script), *arguments]
        return subprocess.run(command, check=check, capture_output=True, text=True, timeout=TIMEOUT_S)

    return run


@pytest.fixture(scope="session")
def load_worker(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], runtime.Worker]:
    """Stage a model.yaml as ``slipway push`` does, and load it as a worker does, in this process."""

    def load(model: Path) -> runtime.Worker:
        folder = tmp_path_factory.mktemp("staged") / "archive"
        staged = archive.stage(spec.load(model)[0], folder)
        return runtime.load(staged.folder, None)

    return load
