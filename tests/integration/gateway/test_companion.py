"""The companion as a real process, between a real Envoy and a stub of the control plane."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
import uvicorn

from serving.domain import wire
from serving.protocol import open_inference_pb2 as oip_pb
from serving.protocol import open_inference_pb2_grpc as oip_grpc
from tests.support import gateway as g
from tests.support.stack import free_port

pytestmark = [pytest.mark.integration, pytest.mark.anyio]


class ControlPlane:
    """Answers ``GET /v1/gateway/config`` as a long poll and keeps the reports."""

    def __init__(self) -> None:
        self.port = free_port()
        self.config = g.config()
        self.reports: list[wire.GatewayReport] = []
        self._server: uvicorn.Server | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def last(self) -> wire.GatewayReport | None:
        return self.reports[-1] if self.reports else None

    def applied(self) -> bool:
        return self.last is not None and self.last.applied_revision == self.config.revision

    async def start(self) -> None:
        settings = uvicorn.Config(self, host="127.0.0.1", port=self.port, log_level="error", lifespan="off")
        self._server = uvicorn.Server(settings)
        self._server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
        self._task = asyncio.create_task(self._server.serve())
        await g.eventually(lambda: self._server and self._server.started, what="the stub control plane")

    async def stop(self) -> None:
        if self._server is not None and self._task is not None:
            self._server.should_exit = self._server.force_exit = True
            await self._task
            self._server = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        status, content = 200, b"{}"
        if scope["method"] == "PUT":
            self.reports.append(wire.GatewayReport.model_validate_json(body))
            assert scope["path"] == f"/v1/gateways/{self.reports[-1].gateway}"
        else:
            query = dict(pair.split("=") for pair in scope["query_string"].decode().split("&"))
            with contextlib.suppress(AssertionError):
                await g.eventually(lambda: self.config.revision != query.get("revision"), what="news", timeout_s=2.0)
            if self.config.revision == query.get("revision"):
                status, content = 204, b""
            else:
                content = self.config.model_dump_json().encode()
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": content})


@pytest.fixture
async def control() -> AsyncIterator[ControlPlane]:
    plane = ControlPlane()
    await plane.start()
    yield plane
    await plane.stop()


@contextlib.asynccontextmanager
async def companion(envoy: g.Gateway, control: ControlPlane) -> AsyncIterator[subprocess.Popen[bytes]]:
    log = envoy.settings.folder / "companion.log"
    with log.open("ab") as stream:
        process = subprocess.Popen(
            [sys.executable, "-m", "serving.gateway.companion"],
            env=g.environment(envoy.settings, control_url=control.url),
            stdout=stream,
            stderr=stream,
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
        code = await asyncio.to_thread(process.wait, 15)
        print(log.read_text())  # noqa: T201 - pytest shows it beside a failure
        assert code in (0, -signal.SIGKILL, -signal.SIGTERM)


async def test_news_reach_envoy_and_what_envoy_serves_reaches_the_control_plane(
    envoy: g.Gateway, control: ControlPlane, one: g.Upstream, two: g.Upstream
) -> None:
    release = asyncio.Event()

    async def slow(seen: g.Seen) -> g.Reply:
        await release.wait()
        return 200, {}, b"slow"

    one.answer = slow
    versions = [g.version(1, [one.endpoint()]), g.version(2, [two.endpoint()])]
    control.config = g.config(g.model("digits", versions, production=1))
    async with companion(envoy, control), g.client(envoy) as client:
        await g.eventually(control.applied, what="the first revision", timeout_s=20)
        waiting = asyncio.create_task(client.post("/predictions/digits", content=b"x"))
        await g.eventually(lambda: one.seen, what="the request to arrive")
        control.config = g.config(g.model("digits", versions, production=2))
        await g.eventually(control.applied, what="the second revision")
        assert (await client.post("/predictions/digits")).headers["slipway-model-version"] == "2"

        def active(version: int) -> int:
            assert control.last is not None
            return sum(entry.requests for entry in control.last.active if entry.version == version)

        await g.eventually(lambda: active(1) == 1, what="the request in flight to be reported")
        release.set()
        assert (await waiting).content == b"slow"
        await g.eventually(lambda: active(1) == 0, what="the end of the request to be reported")
        assert control.last is not None
        assert (control.last.gateway, control.last.url) == (envoy.settings.gateway, envoy.url)


async def test_envoy_s_refusal_is_reported_and_the_old_configuration_serves_on(
    envoy: g.Gateway, control: ControlPlane, one: g.Upstream
) -> None:
    good = control.config = g.config(g.model("digits", [g.version(1, [one.endpoint()])], production=1))
    async with companion(envoy, control), g.client(envoy) as client:
        await g.eventually(control.applied, what="the good revision", timeout_s=20)
        nowhere = one.endpoint().model_copy(update={"rest_port": 70_000})
        control.config = g.config(g.model("digits", [g.version(2, [nowhere])], production=2))
        await g.eventually(lambda: control.last and control.last.error, what="the refusal to be reported")
        assert control.last is not None and "65535" in (control.last.error or "")
        assert control.last.applied_revision == good.revision
        assert (await client.post("/predictions/digits")).json()["version"] == 1
        control.config = g.config(g.model("digits", [g.version(1, [one.endpoint()])], staging=1))
        await g.eventually(lambda: control.applied() and control.last and not control.last.error, what="recovery")


async def test_without_a_control_plane_a_restarted_gateway_serves_all_it_served(
    envoy: g.Gateway, control: ControlPlane, one: g.Upstream
) -> None:
    control.config = g.config(g.model("digits", [g.version(1, [one.endpoint()])], production=1))
    async with companion(envoy, control) as process:
        await g.eventually(control.applied, what="the revision", timeout_s=20)
        process.kill()
    await control.stop()
    await envoy.stop(signal.SIGKILL)
    await envoy.start()
    async with companion(envoy, control), g.client(envoy) as client, envoy.channel() as channel:
        assert (await client.post("/predictions/digits")).json()["version"] == 1
        stub = oip_grpc.GRPCInferenceServiceStub(channel)

        async def ready() -> bool:
            try:
                return (await stub.ModelReady(oip_pb.ModelReadyRequest(name="digits"), timeout=20)).ready
            except grpc.aio.AioRpcError as error:
                assert error.code() is grpc.StatusCode.UNAVAILABLE
                return False

        await g.eventually(ready, what="the companion", timeout_s=20)
        await control.start()
        control.config = g.config(g.model("digits", [g.version(1, [one.endpoint()])], production=1, staging=1))
        await g.eventually(control.applied, what="news once the control plane is back", timeout_s=20)


async def test_an_envoy_that_restarts_under_the_companion_is_brought_up_to_date(
    envoy: g.Gateway, control: ControlPlane, one: g.Upstream
) -> None:
    control.config = g.config(g.model("digits", [g.version(1, [one.endpoint()])], production=1))
    async with companion(envoy, control):
        await g.eventually(control.applied, what="the revision", timeout_s=20)
        await envoy.stop(signal.SIGKILL)
        control.config = g.config(g.model("digits", [g.version(1, [one.endpoint()])], production=1, staging=1))
        await g.eventually(lambda: control.last and control.last.error, what="Envoy's absence to be reported")
        await envoy.launch()
        await g.eventually(control.applied, what="the newest revision", timeout_s=20)


async def test_settings_that_are_missing_end_it_with_one_line(envoy: g.Gateway, control: ControlPlane) -> None:
    environment = g.environment(envoy.settings, control_url=control.url)
    del environment["SLIPWAY_GATEWAY_ADMIN_PORT"]
    ended = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "serving.gateway.companion"],
        env=environment,
        capture_output=True,
        timeout=30,
        check=False,
    )
    assert ended.returncode == 1
    assert "SLIPWAY_GATEWAY_ADMIN_PORT" in json.loads(ended.stderr)["error"]
