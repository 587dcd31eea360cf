"""The parts around an agent under test."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio
import httpx
import psutil
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from model_store import manifest as manifests
from model_store import settings
from model_store.store import Store, archive_key
from serving.domain import wire
from tests.support import waiting
from tests.support.stack import REPOSITORY, free_port

ECHO = """
import os

def handle(data, context):
    if data is None:
        return None
    return [{"sum": sum((row.get("body") or row.get("data")))} for row in data]
"""
"""A TorchServe handler of the plainest kind: adds up the bytes that it gets."""

EPOCH = (1980, 1, 1, 0, 0, 0)


class Publisher:
    """Puts hand-made archives into the bucket."""

    def __init__(self, *, environment: dict[str, str], folder: Path) -> None:
        # boto3's own chain reads the process's environment; credentials of a test are given to this store alone.
        where = settings.Settings.from_url(
            environment["SLIPWAY_STORE"],
            endpoint=environment["SLIPWAY_STORE_ENDPOINT"],
            region=environment["SLIPWAY_STORE_REGION"],
            addressing="path",
            access_key=environment["AWS_ACCESS_KEY_ID"],
            secret_key=environment["AWS_SECRET_ACCESS_KEY"],
        )
        self._client = where.client()
        self.store = Store(where)
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def publish(
        self, *, handler: str = ECHO, golden: bytes = b"\x01\x02\x03", expected: Any = None, **serving: Any
    ) -> manifests.Manifest:
        """Pack a handler with one golden input and publish it."""
        files = {
            "MAR-INF/MANIFEST.json": json.dumps(
                {"runtime": "python", "model": {"modelName": "x", "handler": "plain.py", "modelVersion": "1.0"}}
            ).encode(),
            "plain.py": handler.encode(),
            "golden/one.bin": golden,
        }
        path = self._folder / "archive.mar"
        with zipfile.ZipFile(path, "w") as archive:
            for name, body in sorted(files.items()):
                archive.writestr(zipfile.ZipInfo(name, date_time=EPOCH), body)
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        document = manifests.Manifest(
            model="echo",
            digest=digest,
            size_bytes=path.stat().st_size,
            unpacked_bytes=sum(map(len, files.values())),
            archive_key=archive_key(digest),
            config=manifests.ArchiveConfig(handler="file:plain.py", golden=[manifests.GoldenInput(file="one.bin")]),
            serving=manifests.Serving.model_validate({"workers": 1, "threads": 1, "startup_timeout_s": 120} | serving),
            golden=[] if expected is None else [manifests.GoldenOutput(file="one.bin", expected=expected)],
            provenance=manifests.Provenance(
                created_at=datetime(2026, 1, 1, tzinfo=UTC), created_by="test", host="test", slipway="0"
            ),
        )
        self.store.publish(path, document)
        return document

    def tamper(self, document: manifests.Manifest) -> None:
        """Put other bytes of the same length under the archive's key."""
        self._client.put_object(Bucket="agent", Key=document.archive_key, Body=b"x" * document.size_bytes)


class ControlPlane:
    """Answers what the agent asks, and remembers what it was told."""

    def __init__(self) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.reports: list[wire.ReplicaReport] = []
        self.routed: list[wire.VersionRef] = []
        self._assignment = wire.Assignment(pool="cpu", generation=0, versions=[])
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None

    def assign(self, versions: dict[tuple[str, int], manifests.Manifest]) -> None:
        """Replace the pool's assignment."""
        self._assignment = wire.Assignment(
            pool="cpu",
            generation=self._assignment.generation + 1,
            versions=[
                wire.AssignedVersion(model=model, version=version, manifest=manifest)
                for (model, version), manifest in versions.items()
            ],
        )

    def server(self, model: str, version: int) -> wire.ServerReport | None:
        """What the newest report says of one version."""
        if not self.reports:
            return None
        newest = self.reports[-1]
        return next((server for server in newest.servers if (server.model, server.version) == (model, version)), None)

    def wait(self, model: str, version: int, state: wire.ServerState, *, timeout_s: float = 90) -> wire.ServerReport:
        """Wait until a report says that a version is in a state."""

        def there() -> wire.ServerReport | None:
            server = self.server(model, version)
            return server if server is not None and server.state is state else None

        try:
            return waiting.wait_until(there, timeout_s=timeout_s, what=f"{model}@{version} to be {state}")
        except AssertionError as error:
            raise AssertionError(f"{error}; the newest report: {self.reports[-1:]}") from error

    def states(self, model: str, version: int) -> list[str]:
        """Every state that was reported of a version, in order, repetitions left out."""
        states: list[str] = []
        for report in list(self.reports):
            for server in report.servers:
                if (server.model, server.version) == (model, version) and states[-1:] != [server.state]:
                    states.append(server.state)
        return states

    def start(self) -> None:
        app = Starlette(
            routes=[
                Route("/v1/pools/{pool}/assignment", self._get_assignment),
                Route("/v1/replicas/{replica}", self._put_report, methods=["PUT"]),
            ]
        )
        config = uvicorn.Config(app, host="127.0.0.1", port=self.port, log_config=None, lifespan="off")
        server = uvicorn.Server(config)
        self._server = server
        self._thread = threading.Thread(target=server.run, daemon=True)
        self._thread.start()
        waiting.wait_until(lambda: server.started, timeout_s=10, what="the stub control plane")

    def stop(self) -> None:
        if self._server is not None and self._thread is not None:
            self._server.should_exit = self._server.force_exit = True
            self._thread.join(timeout=20)
        self._server = self._thread = None

    def __enter__(self) -> ControlPlane:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    async def _get_assignment(self, request: Request) -> JSONResponse:
        known = int(request.query_params.get("generation", "-1"))
        with anyio.move_on_after(min(5.0, float(request.query_params.get("wait_s", "0")))):
            while self._assignment.generation == known:
                await anyio.sleep(0.02)
        return JSONResponse(self._assignment.model_dump(mode="json"))

    async def _put_report(self, request: Request) -> JSONResponse:
        self.reports.append(wire.ReplicaReport.model_validate_json(await request.body()))
        acknowledgement = wire.ReportAck(generation=self._assignment.generation, routed=self.routed)
        return JSONResponse(acknowledgement.model_dump(mode="json"))


class AgentProcess:
    """``python -m serving.agent`` in a home of its own."""

    def __init__(self, *, home: Path, control_url: str, environment: dict[str, str]) -> None:
        self.home = home
        self.port = free_port()
        self._environment = environment | {
            "SLIPWAY_CONTROL_URL": control_url,
            "SLIPWAY_POOL": "cpu",
            "SLIPWAY_REPLICA": "replica-under-test",
            "SLIPWAY_AGENT_HOME": str(home),
            "SLIPWAY_AGENT_PORT": str(self.port),
            "SLIPWAY_CORES": "2",
            "SLIPWAY_DRAIN_TIMEOUT_S": "30",
        }
        self._process: subprocess.Popen[bytes] | None = None
        home.mkdir(parents=True, exist_ok=True)

    @property
    def log(self) -> str:
        return (self.home / "agent.log").read_text(errors="replace")

    def start(self, **environment: str) -> None:
        with (self.home / "agent.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "serving.agent"],
                cwd=REPOSITORY,
                env=os.environ | self._environment | environment,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
            )

    def kill(self) -> None:
        """SIGKILL: it gets no chance to say or do anything."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(timeout=10)
        self._process = None

    def terminate(self, *, timeout_s: float = 60) -> int:
        """SIGTERM, and its exit code."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        code = self._process.wait(timeout=timeout_s)
        self._process = None
        return code

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def wait(self, *, timeout_s: float) -> int:
        assert self._process is not None
        return self._process.wait(timeout=timeout_s)

    def get(self, path: str) -> httpx.Response:
        return httpx.get(f"http://127.0.0.1:{self.port}{path}", timeout=10, trust_env=False)

    def java(self) -> list[psutil.Process]:
        """Java processes that were started from this home."""
        return [process for process in self._family() if "org.pytorch.serve.ModelServer" in process.cmdline()]

    def _family(self) -> Iterator[psutil.Process]:
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                home = str(self.home)
                in_home = process.cwd().startswith(home) or any(home in part for part in process.cmdline())
                if in_home and process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE:
                    yield process

    def clean_up(self) -> None:
        """End the agent and everything that it started."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(timeout=10)
        for process in list(self._family()):
            with contextlib.suppress(psutil.Error):
                process.kill()


def predict(server: wire.ServerReport, body: bytes) -> httpx.Response:
    """Ask a server process the way that a gateway would."""
    url = f"http://{server.host}:{server.rest_port}/predictions/{server.model}/{server.version}"
    return httpx.post(url, content=body, timeout=20, trust_env=False)
