"""What handlers, disks, stores and people do to an agent."""

from __future__ import annotations

import os
import shutil
import time

import httpx
import psutil
import pytest

from serving.domain.wire import ServerState
from tests.integration.agent.rig import ECHO, AgentProcess, ControlPlane, Publisher, predict
from tests.support import seaweed, waiting

pytestmark = pytest.mark.integration

HANGS_AT_LOAD = """
import time

def handle(data, context):
    if data is None:
        time.sleep(3600)
"""

HANGS_WHEN_ASKED_TO = """
import time

def handle(data, context):
    if data is None:
        return None
    bodies = [row.get("body") or row.get("data") for row in data]
    if b"hang" in [bytes(body) for body in bodies]:
        time.sleep(3600)
    return [{"sum": sum(body)} for body in bodies]
"""

PRINTS_MEGABYTES = """
def handle(data, context):
    if data is None:
        return None
    for _ in range(20_000):
        print("x" * 1000)
    return [{"sum": 0} for _ in data]
"""

DIES_WITHOUT_A_WORD = """
import os, signal

def handle(data, context):
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_handler_that_hangs_at_load_is_given_up_and_said_so(
    agent: AgentProcess, control_plane: ControlPlane, publisher: Publisher
) -> None:
    control_plane.assign({("echo", 1): publisher.publish(handler=HANGS_AT_LOAD, startup_timeout_s=5)})
    agent.start()
    failed = control_plane.wait("echo", 1, ServerState.FAILED, timeout_s=60)
    assert "did not respond in given time" in (failed.error or "")


def test_a_worker_that_is_killed_while_it_loads_is_reported_within_seconds(
    agent: AgentProcess, control_plane: ControlPlane, publisher: Publisher
) -> None:
    control_plane.assign({("echo", 1): publisher.publish(handler=DIES_WITHOUT_A_WORD)})
    agent.start()
    failed = control_plane.wait("echo", 1, ServerState.FAILED, timeout_s=60)
    assert "a worker died" in (failed.error or "")
    waiting.wait_until(lambda: not agent.java(), timeout_s=30, what="Java to be gone")


def test_a_hanging_request_costs_its_worker_and_the_replica_recovers(
    agent: AgentProcess, control_plane: ControlPlane, publisher: Publisher
) -> None:
    control_plane.assign({("echo", 1): publisher.publish(handler=HANGS_WHEN_ASKED_TO, response_timeout_s=3)})
    agent.start()
    before = control_plane.wait("echo", 1, ServerState.READY)

    assert predict(before, b"hang").status_code >= 500
    waiting.wait_until(
        lambda: (control_plane.server("echo", 1) or before).state != "ready", timeout_s=15, what="the loss"
    )
    after = control_plane.wait("echo", 1, ServerState.READY)

    assert after.pid == before.pid
    assert predict(after, b"\x05").json() == {"sum": 5}


def test_a_handler_that_prints_megabytes_fills_no_disk(
    agent: AgentProcess, control_plane: ControlPlane, publisher: Publisher
) -> None:
    control_plane.assign({("echo", 1): publisher.publish(handler=PRINTS_MEGABYTES)})
    agent.start()
    server = control_plane.wait("echo", 1, ServerState.READY)
    for _ in range(3):
        assert predict(server, b"x").status_code == 200

    (root,) = (agent.home / "servers").iterdir()
    logged = sum(path.stat().st_size for path in (root / "logs").iterdir())
    assert 1_000_000 < logged < 40_000_000


def test_a_store_that_is_away_is_waited_for(
    agent: AgentProcess, control_plane: ControlPlane, publisher: Publisher, store: seaweed.Seaweed
) -> None:
    document = publisher.publish(handler=ECHO + "# while the store goes away\n")
    store.stop()
    try:
        control_plane.assign({("echo", 1): document})
        agent.start()
        waiting.wait_until(lambda: _error(control_plane), timeout_s=90, what="the store's absence to be reported")
        assert "failed" not in control_plane.states("echo", 1)
    finally:
        store.start()
    control_plane.wait("echo", 1, ServerState.READY, timeout_s=120)


def test_a_second_agent_in_the_same_home_is_refused(
    agent: AgentProcess, control_plane: ControlPlane, publisher: Publisher, store: seaweed.Seaweed
) -> None:
    agent.start()
    waiting.wait_until(lambda: _listens(agent), timeout_s=20, what="the first agent")
    second = AgentProcess(home=agent.home, control_url=control_plane.url, environment=store.environment("agent"))
    second.start()
    assert second.wait(timeout_s=20) == 1
    assert "another agent works in" in agent.log


def test_java_without_a_record_is_ended_by_the_next_agent(
    agent: AgentProcess, control_plane: ControlPlane, publisher: Publisher
) -> None:
    control_plane.assign({("echo", 1): publisher.publish(expected={"sum": 6})})
    agent.start()
    before = control_plane.wait("echo", 1, ServerState.READY)
    agent.kill()
    (root,) = (agent.home / "servers").iterdir()
    (root / "server.json").unlink()

    agent.start()
    waiting.wait_until(
        lambda: (control_plane.server("echo", 1) or before).pid not in (None, before.pid),
        timeout_s=60,
        what="a new one",
    )
    control_plane.wait("echo", 1, ServerState.READY)
    assert [process.pid for process in agent.java()] != [before.pid]
    assert len(agent.java()) == 1


def test_a_stopped_process_is_not_adopted_but_replaced(
    agent: AgentProcess, control_plane: ControlPlane, publisher: Publisher
) -> None:
    control_plane.assign({("echo", 1): publisher.publish(expected={"sum": 6})})
    agent.start()
    before = control_plane.wait("echo", 1, ServerState.READY)
    assert before.pid is not None
    agent.kill()
    psutil.Process(before.pid).suspend()

    agent.start()
    after = waiting.wait_until(
        lambda: _ready_with_another_pid(control_plane, before.pid), timeout_s=90, what="a process that answers"
    )
    assert after
    assert not psutil.pid_exists(before.pid)


def test_a_copy_that_was_deleted_is_fetched_again(
    agent: AgentProcess, control_plane: ControlPlane, publisher: Publisher
) -> None:
    control_plane.assign({("echo", 1): publisher.publish(expected={"sum": 6})})
    agent.start()
    before = control_plane.wait("echo", 1, ServerState.READY)
    assert before.pid is not None
    (root,) = (agent.home / "servers").iterdir()
    shutil.rmtree(root / "model")
    os.kill(before.pid, 9)

    waiting.wait_until(lambda: _ready_with_another_pid(control_plane, before.pid), timeout_s=120, what="the recovery")


def test_an_end_without_control_plane_is_bounded(
    agent: AgentProcess, control_plane: ControlPlane, publisher: Publisher
) -> None:
    control_plane.assign({("echo", 1): publisher.publish(expected={"sum": 6})})
    agent.start()
    control_plane.wait("echo", 1, ServerState.READY)
    control_plane.stop()

    began = time.monotonic()
    assert agent.terminate(timeout_s=40) == 0
    assert time.monotonic() - began < 25
    assert agent.java() == []


def _error(control_plane: ControlPlane) -> str | None:
    server = control_plane.server("echo", 1)
    return server.error if server else None


def _ready_with_another_pid(control_plane: ControlPlane, pid: int | None) -> bool:
    server = control_plane.server("echo", 1)
    return server is not None and server.state == "ready" and server.pid != pid


def _listens(agent: AgentProcess) -> bool:
    try:
        return agent.get("/healthz").status_code == 200
    except httpx.TransportError:
        return False
