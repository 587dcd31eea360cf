"""An agent under test: the real process, real TorchServe, a real S3, and a control plane of a few lines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.agent.rig import AgentProcess, ControlPlane, Publisher
from tests.support import seaweed


@pytest.fixture(scope="module")
def store() -> Iterator[seaweed.Seaweed]:
    with seaweed.running(buckets=("agent",)) as running:
        yield running


@pytest.fixture
def control_plane() -> Iterator[ControlPlane]:
    with ControlPlane() as plane:
        yield plane


@pytest.fixture
def publisher(store: seaweed.Seaweed, tmp_path: Path) -> Publisher:
    return Publisher(environment=store.environment("agent"), folder=tmp_path / "archives")


@pytest.fixture
def agent(store: seaweed.Seaweed, control_plane: ControlPlane, tmp_path: Path) -> Iterator[AgentProcess]:
    process = AgentProcess(
        home=tmp_path / "home", control_url=control_plane.url, environment=store.environment("agent")
    )
    try:
        yield process
    finally:
        process.clean_up()
