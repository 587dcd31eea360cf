"""One replica's life, with everything real but the control plane."""

from __future__ import annotations

import signal
import subprocess
import time

import httpx
import psutil
import pytest

from serving.domain.wire import ServerState, VersionRef
from tests.integration.agent.rig import ECHO, AgentProcess, ControlPlane, Publisher, predict
from tests.support import waiting

pytestmark = pytest.mark.integration

RAISES_AT_LOAD = """
def initialize_weights():
    raise ValueError("the weights are for another architecture")

def handle(data, context):
    if data is None:
        initialize_weights()
    return ["never" for _ in data]
"""


def test_a_version_is_pulled_started_replayed_and_reported_ready(
    agent: AgentProcess, control_plane: ControlPlane, publisher: Publisher
) -> None:
    control_plane.assign({("echo", 1): publisher.publish(expected={"sum": 6})})
    agent.start()

    server = control_plane.wait("echo", 1, ServerState.READY)

    assert predict(server, bytes([20, 22])).json() == {"sum": 42}
    assert control_plane.states("echo", 1)[-3:] == ["starting", "warming", "ready"]
    assert (server.workers, server.threads) == (1, 1)
    assert agent.get("/readyz").status_code == 200
    assert agent.get("/healthz").status_code == 200
    text = agent.get("/metrics").text
    assert 'slipway_server_workers_ready{model="echo",pool="cpu",version="1"} 1.0' in text
    assert 'ts_inference_requests_total{model="echo",version="1",pool="cpu"} 2.0' in text
    # Memory is measured by the watch, after readiness was reported.
    waiting.wait_until(
        lambda: (control_plane.server("echo", 1) or server).memory_bytes > 50e6, timeout_s=20, what="memory"
    )


def test_a_killed_agent_comes_back_without_control_plane_and_adopts_what_serves(
    agent: AgentProcess, control_plane: ControlPlane, publisher: Publisher
) -> None:
    control_plane.assign({("echo", 1): publisher.publish(expected={"sum": 6})})
    agent.start()
    before = control_plane.wait("echo", 1, ServerState.READY)
    agent.kill()
    assert predict(before, b"\x07").json() == {"sum": 7}
    control_plane.stop()

    agent.start()
    waiting.wait_until(lambda: _answers_ready(agent), timeout_s=30, what="the new agent to be ready")

    assert [process.pid for process in agent.java()] == [before.pid]
    assert predict(before, b"\x08").json() == {"sum": 8}
    reports_before = len(control_plane.reports)
    control_plane.start()
    waiting.wait_until(lambda: len(control_plane.reports) > reports_before, timeout_s=30, what="a report")
    after = control_plane.reports[reports_before].servers
    assert [(server.state, server.pid) for server in after] == [(ServerState.READY, before.pid)]


def test_a_killed_java_is_reported_and_started_again(
    agent: AgentProcess, control_plane: ControlPlane, publisher: Publisher
) -> None:
    control_plane.assign({("echo", 1): publisher.publish(expected={"sum": 6})})
    agent.start()
    before = control_plane.wait("echo", 1, ServerState.READY)
    assert before.pid is not None

    psutil.Process(before.pid).kill()
    waiting.wait_until(lambda: _state(control_plane) != "ready", timeout_s=10, what="the loss to be reported")
    after = control_plane.wait("echo", 1, ServerState.READY)

    assert after.pid != before.pid
    assert after.restarts == 1
    assert predict(after, b"\x09").json() == {"sum": 9}
    assert len(agent.java()) == 1


def test_a_killed_worker_is_replaced_within_the_same_process(
    agent: AgentProcess, control_plane: ControlPlane, publisher: Publisher
) -> None:
    control_plane.assign({("echo", 1): publisher.publish(expected={"sum": 6})})
    agent.start()
    before = control_plane.wait("echo", 1, ServerState.READY)
    assert before.pid is not None
    (worker,) = [
        child for child in psutil.Process(before.pid).children() if "model_service_worker" in " ".join(child.cmdline())
    ]

    worker.kill()
    waiting.wait_until(lambda: _state(control_plane) != "ready", timeout_s=15, what="the loss to be reported")
    after = control_plane.wait("echo", 1, ServerState.READY)

    assert after.pid == before.pid
    assert predict(after, b"\x09").json() == {"sum": 9}


def test_a_version_that_cannot_load_is_reported_with_its_traceback_while_the_other_serves(
    agent: AgentProcess, control_plane: ControlPlane, publisher: Publisher
) -> None:
    good = publisher.publish(expected={"sum": 6})
    control_plane.assign({("echo", 1): good})
    agent.start()
    server = control_plane.wait("echo", 1, ServerState.READY)

    assigned_at = time.monotonic()
    control_plane.assign({("echo", 1): good, ("echo", 2): publisher.publish(handler=RAISES_AT_LOAD)})
    failed = control_plane.wait("echo", 2, ServerState.FAILED)

    assert time.monotonic() - assigned_at < 60
    assert failed.error is not None
    assert "ValueError: the weights are for another architecture" in failed.error
    assert "in initialize_weights" in failed.error
    assert _state(control_plane) == "ready"
    assert predict(server, b"\x05").json() == {"sum": 5}
    assert agent.get("/readyz").status_code == 503


def test_a_version_that_answers_otherwise_than_published_never_becomes_ready(
    agent: AgentProcess, control_plane: ControlPlane, publisher: Publisher
) -> None:
    control_plane.assign({("echo", 1): publisher.publish(expected={"sum": 7})})
    agent.start()

    failed = control_plane.wait("echo", 1, ServerState.FAILED)

    assert "golden input one.bin" in (failed.error or "")
    assert "ready" not in control_plane.states("echo", 1)


def test_a_version_is_stopped_only_after_it_is_routed_away(
    agent: AgentProcess, control_plane: ControlPlane, publisher: Publisher
) -> None:
    control_plane.assign({("echo", 1): publisher.publish(expected={"sum": 6})})
    control_plane.routed = [VersionRef(model="echo", version=1)]
    agent.start()
    server = control_plane.wait("echo", 1, ServerState.READY)

    control_plane.assign({})
    control_plane.wait("echo", 1, ServerState.DRAINING)
    reports = len(control_plane.reports)
    waiting.wait_until(lambda: len(control_plane.reports) >= reports + 2, timeout_s=20, what="two more reports")
    assert predict(server, b"\x04").json() == {"sum": 4}

    control_plane.routed = []
    waiting.wait_until(lambda: not agent.java(), timeout_s=30, what="Java to be gone")
    waiting.wait_until(lambda: control_plane.server("echo", 1) is None, timeout_s=10, what="the report")
    assert list((agent.home / "servers").iterdir()) == []


def test_sigterm_drains_the_replica_and_leaves_nothing_behind(
    agent: AgentProcess, control_plane: ControlPlane, publisher: Publisher
) -> None:
    control_plane.assign({("echo", 1): publisher.publish(expected={"sum": 6})})
    control_plane.routed = [VersionRef(model="echo", version=1)]
    agent.start()
    server = control_plane.wait("echo", 1, ServerState.READY)

    agent.signal(signal.SIGTERM)
    waiting.wait_until(lambda: control_plane.reports[-1].draining, timeout_s=10, what="the draining report")
    assert predict(server, b"\x04").json() == {"sum": 4}
    control_plane.routed = []

    assert agent.wait(timeout_s=30) == 0
    assert agent.java() == []
    assert control_plane.reports[-1].servers == []


def test_an_archive_that_was_tampered_with_is_never_started(
    agent: AgentProcess, control_plane: ControlPlane, publisher: Publisher
) -> None:
    document = publisher.publish(handler=ECHO + "# as published\n")
    # Same size, other bytes: only the digest can tell.
    publisher.tamper(document)
    control_plane.assign({("echo", 1): document})
    agent.start()

    failed = control_plane.wait("echo", 1, ServerState.FAILED)

    assert document.digest[:12] in (failed.error or "")
    assert agent.java() == []


def _state(control_plane: ControlPlane) -> str | None:
    server = control_plane.server("echo", 1)
    return server.state if server else None


def _answers_ready(agent: AgentProcess) -> bool:
    try:
        return agent.get("/readyz").status_code == 200
    except httpx.TransportError:
        return False


def test_an_agent_that_is_killed_at_any_moment_ends_with_one_process_that_answers(
    agent: AgentProcess, control_plane: ControlPlane, publisher: Publisher
) -> None:
    control_plane.assign({("echo", 1): publisher.publish(expected={"sum": 6})})
    for uptime_s in (0.8, 1.0, 1.3, 2.0, 3.0):
        agent.start()
        with pytest.raises(subprocess.TimeoutExpired):
            agent.wait(timeout_s=uptime_s)
        agent.kill()

    reports = len(control_plane.reports)
    agent.start()
    waiting.wait_until(lambda: len(control_plane.reports) > reports, timeout_s=60, what="the last agent's report")
    server = control_plane.wait("echo", 1, ServerState.READY, timeout_s=120)

    assert [process.pid for process in agent.java()] == [server.pid]
    assert predict(server, b"\x04\x05").json() == {"sum": 9}


def test_every_worker_is_waited_for(agent: AgentProcess, control_plane: ControlPlane, publisher: Publisher) -> None:
    control_plane.assign({("echo", 1): publisher.publish(expected={"sum": 6}, workers=2)})
    agent.start()
    server = control_plane.wait("echo", 1, ServerState.READY)
    assert server.workers == 2
    assert 'slipway_server_workers_ready{model="echo",pool="cpu",version="1"} 2.0' in agent.get("/metrics").text


def test_two_versions_are_held_side_by_side_and_answer_as_themselves(
    agent: AgentProcess, control_plane: ControlPlane, publisher: Publisher
) -> None:
    doubled = ECHO.replace('"sum": sum(', '"sum": 2 * sum(')
    first, second = publisher.publish(expected={"sum": 6}), publisher.publish(handler=doubled, expected={"sum": 12})
    control_plane.assign({("echo", 1): first, ("echo", 2): second})
    agent.start()
    old = control_plane.wait("echo", 1, ServerState.READY)
    new = control_plane.wait("echo", 2, ServerState.READY)
    assert (predict(old, b"\x02").json(), predict(new, b"\x02").json()) == ({"sum": 2}, {"sum": 4})
    text = agent.get("/metrics").text
    assert text.count("# TYPE ts_inference_requests_total counter") == 1
    assert all(f'ts_inference_requests_total{{model="echo",version="{n}",pool="cpu"}}' in text for n in (1, 2))
