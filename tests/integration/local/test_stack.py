"""The real parts, without a model: what the supervisor and its command line make of them."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from serving.local import leftovers
from serving.local.home import Home
from tests.support import waiting
from tests.support.stack import REPOSITORY, SLIPWAY, CommandFailed, Stack

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    stack = Stack(home=tmp_path / "home")
    yield stack
    stack.run("down", check=False)
    assert leftovers.find(Home(stack.home)) == []


def up(stack: Stack, *more: str) -> list[str]:
    ports = ["--port", str(stack.port), "--control-port", str(stack.control_port)]
    return [SLIPWAY, "up", "--home", str(stack.home), *ports, *more]


def supervisor(stack: Stack) -> int:
    return int(json.loads((stack.home / "stack.json").read_text())["supervisor"]["pid"])


def test_a_stack_answers_when_up_returns_and_again_at_the_same_place_after_down(stack: Stack) -> None:
    stack.up()
    status = stack.json("status")
    assert status["gateway"] == stack.gateway
    assert status["control_plane"] == stack.control_plane
    assert [part["state"] for part in status["parts"]] == ["ready"] * 5
    assert stat.S_IMODE((stack.home / "stack.json").stat().st_mode) == 0o600
    assert httpx.get(f"{stack.gateway}/v2/health/live").status_code == 200
    assert httpx.get(f"{stack.control_plane}/readyz").status_code == 200
    pids = [part["pid"] for part in status["parts"]]
    listening = {each.laddr.ip.removeprefix("::ffff:") for pid in pids for each in _listeners(pid)}
    assert listening == {"127.0.0.1"}

    stack.down()
    assert [pid for pid in pids if psutil.pid_exists(pid)] == []
    assert stack.run("status", check=False).returncode == 5
    # The home remembers its ports, also those that were asked for.
    stack.run("up", "-d", timeout_s=120)
    assert stack.json("status")["gateway"] == stack.gateway
    assert stack.json("status")["store"] == status["store"]


def _listeners(pid: int) -> list[psutil._common.pconn]:  # pyright: ignore
    return [each for each in psutil.Process(pid).net_connections("tcp") if each.status == psutil.CONN_LISTEN]


@pytest.mark.parametrize("part", ["store", "control-plane", "agent"])
def test_a_stack_killed_while_it_starts_comes_up_the_next_time(stack: Stack, part: str) -> None:
    starting = subprocess.Popen(
        up(stack, "-d"),
        cwd=REPOSITORY,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    home = Home(stack.home)

    def started() -> bool:
        known = home.read()
        return known is not None and any(each.name == part and each.pid for each in known.parts)

    waiting.wait_until(started, timeout_s=60, what=f"{part} to be started")
    os.kill(supervisor(stack), signal.SIGKILL)
    assert starting.wait(30) != 0
    assert part in {each.part for each in leftovers.find(home)}
    stack.up()
    assert httpx.get(f"{stack.control_plane}/readyz").status_code == 200


def test_down_ends_what_a_killed_supervisor_left_running(stack: Stack) -> None:
    stack.up()
    pids = [part["pid"] for part in stack.json("status")["parts"]]
    os.kill(supervisor(stack), signal.SIGKILL)
    assert "supervisor was killed" in stack.run("status", check=False).stderr
    assert "gateway" in stack.run("down").stderr
    assert [pid for pid in pids if psutil.pid_exists(pid)] == []


def test_ctrl_c_ends_a_stack_in_the_foreground_in_order(stack: Stack, tmp_path: Path) -> None:
    said = tmp_path / "said"
    with said.open("wb") as output:
        running = subprocess.Popen(
            up(stack),
            cwd=REPOSITORY,
            stdout=output,
            stderr=output,
        )
    waiting.wait_until(lambda: "Ctrl-C" in said.read_text(), timeout_s=90, what="the stack to be up")
    running.send_signal(signal.SIGINT)
    assert running.wait(60) == 0
    lines = said.read_text().splitlines()
    order = ["gateway", "gateway-config", "agent", "control-plane", "store"]
    assert lines[-6:] == [f"stopping {part}" for part in order] + ["stopped"]


def test_workers_without_torchserve_are_one_line_and_nothing_is_left(stack: Stack, tmp_path: Path) -> None:
    environment = {"SLIPWAY_WORKER_PYTHON": str(tmp_path / "no-such-python")}
    result = stack.run("up", "-d", check=False, environment=environment)
    assert result.returncode == 1
    assert "no-such-python cannot be used" in result.stderr
    assert "Traceback" not in result.stderr
    assert leftovers.find(Home(stack.home)) == []


def test_two_stacks_run_side_by_side_and_know_nothing_of_each_other(stack: Stack, tmp_path: Path) -> None:
    other = Stack(home=tmp_path / "other")
    stack.up()
    try:
        other.up()
        mine, theirs = stack.json("status"), other.json("status")
        assert not {part["pid"] for part in mine["parts"]} & {part["pid"] for part in theirs["parts"]}
        other.down()
        assert {part["state"] for part in stack.json("status")["parts"]} == {"ready"}
    finally:
        other.run("down", check=False)
    with pytest.raises(CommandFailed, match=str(stack.home)):
        stack.up()
