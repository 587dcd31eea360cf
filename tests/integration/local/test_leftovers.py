from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from serving.local import leftovers
from serving.local.home import Home
from serving.local.parts import Part
from tests.support import waiting

pytestmark = pytest.mark.integration


def start(part: Part) -> subprocess.Popen[bytes]:
    with part.log.open("ab") as log:
        return subprocess.Popen(
            part.command, env=dict(part.environment), stdout=log, stderr=log, start_new_session=True
        )


def test_parts_whose_supervisor_is_gone_are_found_and_stopped(
    make_part: Callable[..., Part], home: Home, story: Path
) -> None:
    store, agent = start(make_part("store")), start(make_part("agent"))
    try:
        waiting.wait_until(lambda: story.read_text().count("starts") == 2, timeout_s=30, what="both to serve")
        assert {each.part for each in leftovers.find(home)} == {"store", "agent"}
        assert set(leftovers.stop_parts(home)) == {"store", "agent"}
        assert leftovers.find(home) == []
        # The agent is not asked: it would take its server processes with it.
        assert story.read_text().splitlines()[2:] == ["store ends"]
    finally:
        for process in (store, agent):
            process.kill()
            process.wait()


def test_parts_of_another_home_and_server_processes_are_left_alone(
    make_part: Callable[..., Part], home: Home, tmp_path: Path
) -> None:
    part = make_part("agent")
    environment = dict(part.environment)
    code = "import time; time.sleep(600)"
    server = subprocess.Popen(
        [sys.executable, "-c", code, leftovers.SERVER_PROCESS], env=environment, start_new_session=True
    )
    other = subprocess.Popen(
        [sys.executable, "-c", code],
        env=environment | leftovers.mark(Home(tmp_path / "other"), "agent"),
        start_new_session=True,
    )
    try:
        assert leftovers.find(home) == []
        assert leftovers.stop_parts(home) == []
        assert server.poll() is None
        assert other.poll() is None
    finally:
        for process in (server, other):
            process.kill()
            process.wait()
