from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.stack import REPOSITORY, Stack


def train_digits(*, out: Path, seed: int) -> Path:
    """A trained digit classifier in a folder of its own; returns its model.yaml."""
    subprocess.run(
        [sys.executable, str(REPOSITORY / "examples" / "digits" / "train.py"), "--out", str(out), "--seed", str(seed)],
        check=True,
        capture_output=True,
        timeout=300,
        cwd=REPOSITORY,
    )
    return out / "model.yaml"


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_digits(out=tmp_path_factory.mktemp("digits-1"), seed=1)


@pytest.fixture(scope="session")
def other_digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model, trained from another seed: another version."""
    return train_digits(out=tmp_path_factory.mktemp("digits-2"), seed=2)


@pytest.fixture(scope="session")
def running_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    stack = Stack(home=tmp_path_factory.mktemp("home"))
    stack.up()
    yield stack
    stack.down()


@pytest.fixture
def stack(running_stack: Stack) -> Stack:
    """The shared stack; started again if a test before left it down."""
    if running_stack.run("status", check=False).returncode != 0:
        running_stack.up()
    return running_stack
