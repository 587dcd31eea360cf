"""A control plane under test: the real application behind a real socket, in a thread or as a process."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import uvicorn

from serving.api import app, settings
from serving.domain import facts, wire
from tests.support import stack, waiting, worlds

START_TIMEOUT_S = 30


class Client(httpx.Client):
    """Talks to a control plane as the command line, an agent and a gateway would."""

    def __init__(self, url: str) -> None:
        super().__init__(base_url=url, timeout=30)

    def register(self, version: int, *, model: str = "digits", **changes: Any) -> httpx.Response:
        manifest = worlds.manifest(model, version, **changes)
        return self.post(f"/v1/models/{model}/versions", json={"manifest": manifest.model_dump(mode="json")})

    def promote(self, version: int, *, model: str = "digits", **fields: Any) -> httpx.Response:
        headers = fields.pop("headers", None)
        return self.post(f"/v1/models/{model}/promotions", json={"version": version, **fields}, headers=headers)

    def assignment(self, *, generation: int | None = None, wait_s: float = 0, pool: str = "cpu") -> wire.Assignment:
        asked = {"wait_s": wait_s} | ({} if generation is None else {"generation": generation})
        response = self.get(f"/v1/pools/{pool}/assignment", params=asked)
        return wire.Assignment.model_validate_json(response.raise_for_status().content)

    def config(self) -> wire.GatewayConfig:
        return wire.GatewayConfig.model_validate_json(self.get("/v1/gateway/config").raise_for_status().content)

    def report(self, report: wire.ReplicaReport) -> wire.ReportAck:
        response = self.put(f"/v1/replicas/{report.replica}", json=report.model_dump(mode="json"))
        return wire.ReportAck.model_validate_json(response.raise_for_status().content)

    def report_gateway(self, report: wire.GatewayReport) -> None:
        self.put(f"/v1/gateways/{report.gateway}", json=report.model_dump(mode="json")).raise_for_status()

    def obey_as_replica(self, name: str = "r1") -> wire.ReportAck:
        """Report everything that the pool must hold as ready."""
        assignment = self.assignment()
        servers = [worlds.server(entry.version, model=entry.model) for entry in assignment.versions]
        return self.report(worlds.report(*servers, replica=name, generation=assignment.generation))

    def obey_as_gateway(self, name: str = "g1") -> str:
        """Report the newest configuration as applied, and return its revision."""
        revision = self.config().revision
        self.report_gateway(worlds.gateway_report(revision, gateway=name))
        return revision

    def rollout(self, identifier: str) -> dict[str, Any]:
        return self.get(f"/v1/rollouts/{identifier}").raise_for_status().json()

    def wait_for(self, identifier: str, *states: str, timeout_s: float = 20) -> dict[str, Any]:
        def reached() -> dict[str, Any] | None:
            found = self.rollout(identifier)
            return found if found["state"] in states else None

        return waiting.wait_until(reached, timeout_s=timeout_s, what=f"rollout {identifier} to be {states}")

    def follow_as_replica(self, identifier: str, state: str) -> dict[str, Any]:
        """Play only a replica until the rollout has the state. One report might answer an assignment of just before."""

        def reached() -> dict[str, Any] | None:
            self.obey_as_replica()
            found = self.rollout(identifier)
            return found if found["state"] == state else None

        return waiting.wait_until(reached, timeout_s=20, what=f"rollout {identifier} to be {state}")

    def finish_as_gateway(self, identifier: str) -> dict[str, Any]:
        """Play only a gateway until the rollout is done."""

        def done() -> dict[str, Any] | None:
            self.obey_as_gateway()
            found = self.rollout(identifier)
            return found if found["state"] == "done" else None

        return waiting.wait_until(done, timeout_s=20, what=f"rollout {identifier} to be done")

    def complete(self, identifier: str) -> dict[str, Any]:
        """Play one replica and one gateway until the rollout is done."""

        def done() -> dict[str, Any] | None:
            self.obey_as_replica()
            self.obey_as_gateway()
            found = self.rollout(identifier)
            return found if found["state"] == "done" else None

        return waiting.wait_until(done, timeout_s=30, what=f"rollout {identifier} to be done")


@contextlib.contextmanager
def in_thread(database_url: str, *, archives: Any = None, **limits: float) -> Iterator[Client]:
    """A control plane of this process."""
    chosen = settings.Settings(database_url=database_url, limits=facts.Limits(**limits))
    application = app.create(chosen, archives=archives)
    server = uvicorn.Server(uvicorn.Config(application, port=0, log_level="warning", log_config=None))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    waiting.wait_until(lambda: server.started or not thread.is_alive(), timeout_s=START_TIMEOUT_S, what="the server")
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        with Client(f"http://127.0.0.1:{port}") as client:
            yield client
    finally:
        server.should_exit = True
        application.state.context.board.is_closed = True
        thread.join(timeout=30)


class Process:
    """A control plane that can be killed."""

    def __init__(self, database_url: str, *, log: Path, environment: dict[str, str] | None = None) -> None:
        self.port = stack.free_port()
        self.client = Client(f"http://127.0.0.1:{self.port}")
        self._log = log
        self._environment = os.environ | {
            "SLIPWAY_DATABASE_URL": database_url,
            "SLIPWAY_API_PORT": str(self.port),
            **(environment or {}),
        }
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "serving.api"], env=self._environment, stderr=log, cwd=stack.REPOSITORY
            )
        waiting.wait_until(self.is_ready, timeout_s=START_TIMEOUT_S, what=f"the control plane ({self._log})")

    def is_ready(self) -> bool:
        try:
            return self.client.get("/readyz").status_code == 200
        except httpx.TransportError:
            return False

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        return self._end(signal.SIGTERM)

    def _end(self, how: signal.Signals) -> int:
        if self._process is None:
            return 0
        self._process.send_signal(how)
        code = self._process.wait(timeout=20)
        self._process = None
        return code

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill()
        self.client.close()
