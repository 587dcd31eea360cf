"""A real Envoy under test, with fake server processes behind it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import httpx
import uvicorn

from serving.domain import routing, wire
from serving.gateway import admin, bootstrap, files, switching, xds
from serving.gateway.settings import Settings
from serving.protocol import inference_pb2, inference_pb2_grpc
from tests.support.stack import free_port

START_TIMEOUT_S = 20.0

Reply = tuple[int, dict[str, str], bytes]


@dataclass
class Seen:
    """A request as a server process saw it."""

    method: str
    path: str
    query: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Upstream:
    """A fake server process: REST and gRPC, both of which say which version they are and remember what they saw."""

    version: int
    rest_port: int = 0
    grpc_port: int = 0
    seen: list[Seen] = field(default_factory=list)
    answer: Callable[[Seen], Awaitable[Reply]] | None = None
    """Overrides the REST answer."""
    predict: Callable[[inference_pb2.PredictionsRequest, Any], Awaitable[bytes]] | None = None
    """Overrides the gRPC answer."""
    calls: list[inference_pb2.PredictionsRequest] = field(default_factory=list)

    def endpoint(self, replica: str = "replica-1") -> wire.Endpoint:
        return wire.Endpoint(replica=replica, host="127.0.0.1", rest_port=self.rest_port, grpc_port=self.grpc_port)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """The ASGI application."""
        if scope["type"] != "http":
            return
        body = b""
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        seen = Seen(scope["method"], scope["path"], scope["query_string"].decode(), headers, body)
        self.seen.append(seen)
        if self.answer is not None:
            status, extra, content = await self.answer(seen)
        else:
            content = json.dumps({"version": self.version, "bytes": len(body)}).encode()
            status, extra = 200, {"content-type": "application/json"}
        raw = [(name.encode(), value.encode()) for name, value in extra.items()]
        raw.append((b"content-length", str(len(content)).encode()))
        await send({"type": "http.response.start", "status": status, "headers": raw})
        await send({"type": "http.response.body", "body": content})


class _Inference(inference_pb2_grpc.InferenceAPIsServiceServicer):
    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream

    async def Predictions(self, request: inference_pb2.PredictionsRequest, context: Any) -> Any:
        self._upstream.calls.append(request)
        if self._upstream.predict is not None:
            return inference_pb2.PredictionResponse(prediction=await self._upstream.predict(request, context))
        return inference_pb2.PredictionResponse(prediction=str(self._upstream.version).encode())

    async def StreamPredictions(self, request: inference_pb2.PredictionsRequest, context: Any) -> Any:
        self._upstream.calls.append(request)
        for part in (b"a", b"b", b"c"):
            yield inference_pb2.PredictionResponse(prediction=part)


@contextlib.asynccontextmanager
async def running_upstream(version: int) -> AsyncIterator[Upstream]:
    upstream = Upstream(version=version)
    config = uvicorn.Config(
        upstream, host="127.0.0.1", port=0, log_level="error", lifespan="off", timeout_keep_alive=60
    )
    server = uvicorn.Server(config)
    server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
    task = asyncio.create_task(server.serve())
    rpc = grpc.aio.server(options=[("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)])
    inference_pb2_grpc.add_InferenceAPIsServiceServicer_to_server(_Inference(upstream), rpc)
    upstream.grpc_port = rpc.add_insecure_port("127.0.0.1:0")
    await rpc.start()
    await eventually(lambda: server.started, what="the fake REST server")
    upstream.rest_port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield upstream
    finally:
        await rpc.stop(0)
        server.should_exit = True
        server.force_exit = True
        await task


def config(*models: wire.GatewayModel) -> wire.GatewayConfig:
    return wire.GatewayConfig(revision=routing.revision(models), models=list(models))


def version(
    number: int,
    endpoints: Iterable[wire.Endpoint] = (),
    *,
    timeout_s: int = 60,
    max_request_bytes: int = 64 * 1024 * 1024,
    model: str = "digits",
) -> wire.GatewayVersion:
    return wire.GatewayVersion(
        version=number,
        endpoints=list(endpoints),
        response_timeout_s=timeout_s,
        max_request_bytes=max_request_bytes,
        metadata={
            "name": model,
            "versions": [str(number)],
            "platform": "slipway_torchserve",
            "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 2]}],
            "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, 1]}],
        },
    )


def model(
    name: str,
    versions: Iterable[wire.GatewayVersion],
    *,
    production: dict[int, int] | int | None = None,
    staging: dict[int, int] | int | None = None,
) -> wire.GatewayModel:
    def stage(stage: str, weights: dict[int, int] | int | None) -> wire.GatewayStage:
        split = {weights: 10_000} if isinstance(weights, int) else weights or {}
        listed = [wire.WeightedVersion(version=number, weight=weight) for number, weight in split.items()]
        return wire.GatewayStage(stage=stage, weights=listed)

    return wire.GatewayModel(
        model=name,
        stages=[stage("staging", staging), stage("production", production)],
        versions=sorted(versions, key=lambda version: -version.version),
    )


@dataclass
class Gateway:
    """One Envoy in a folder of its own. ``apply`` plays the companion."""

    settings: Settings
    process: subprocess.Popen[bytes] | None = None
    switch: switching.Switch | None = None
    admin: admin.Admin | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.settings.port}"

    @property
    def target(self) -> str:
        return f"127.0.0.1:{self.settings.port}"

    @property
    def layout(self) -> files.Layout:
        return files.Layout(root=self.settings.folder)

    @property
    def log(self) -> Path:
        return self.settings.folder / "envoy.log"

    async def start(self) -> None:
        bootstrap.write(self.settings)
        await self.launch()

    async def launch(self) -> None:
        """Start Envoy on what is on disk."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                bootstrap.command(self.settings), stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )
        self.admin = admin.Admin(port=self.settings.admin_port)
        config = self.layout.last_good()
        current = xds.unconfigured() if config is None else xds.snapshot(config, bootstrap.options(self.settings))
        self.switch = switching.Switch(layout=self.layout, admin=self.admin, current=current, hold_s=0)

        async def live() -> bool:
            assert self.process is not None and self.admin is not None
            if self.process.poll() is not None:
                raise AssertionError(f"Envoy exited: {self.log.read_text()[-3000:]}")
            return await self.admin.is_live()

        await eventually(live, what="Envoy", timeout_s=START_TIMEOUT_S)

    async def apply(self, config: wire.GatewayConfig) -> None:
        assert self.switch is not None
        await self.switch.apply(xds.snapshot(config, bootstrap.options(self.settings)))
        self.layout.remember(config)

    async def stop(self, number: int = signal.SIGTERM) -> None:
        if self.admin is not None:
            await self.admin.close()
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)
            await asyncio.to_thread(self.process.wait, 10)

    def channel(self) -> grpc.aio.Channel:
        options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
        return grpc.aio.insecure_channel(self.target, options=options)


def settings(folder: Path, **overrides: Any) -> Settings:
    values: dict[str, Any] = {
        "gateway": "gateway-test",
        "folder": folder,
        "port": free_port(),
        "admin_port": free_port(),
        "oip_port": free_port(),
        "concurrency": 2,
    }
    return Settings(**values | overrides)


@contextlib.asynccontextmanager
async def running_gateway(folder: Path | None = None, **overrides: Any) -> AsyncIterator[Gateway]:
    with tempfile.TemporaryDirectory(prefix="gateway-") as private:
        gateway = Gateway(settings=settings(folder or Path(private), **overrides))
        try:
            await gateway.start()
            yield gateway
        finally:
            await gateway.stop()
            # pytest shows it beside a failure.
            print(gateway.log.read_text(errors="replace")[-4000:])  # noqa: T201


async def eventually(condition: Callable[[], Any], *, what: str, timeout_s: float = 10.0, poll_s: float = 0.02) -> Any:
    """``waiting.wait_until`` for a running event loop; the condition may be a coroutine function."""
    deadline = asyncio.get_running_loop().time() + timeout_s
    while True:
        result = condition()
        if isinstance(result, Awaitable):
            result = await result
        if result:
            return result
        if asyncio.get_running_loop().time() >= deadline:
            raise AssertionError(f"waited {timeout_s} s for {what}; last seen: {result!r}")
        await asyncio.sleep(poll_s)


def client(gateway: Gateway, **options: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=gateway.url, trust_env=False, timeout=20, **options)


def environment(settings: Settings, *, control_url: str) -> dict[str, str]:
    """What the companion's process reads."""
    return os.environ | {
        "SLIPWAY_CONTROL_URL": control_url,
        "SLIPWAY_GATEWAY_ID": settings.gateway,
        "SLIPWAY_GATEWAY_DIR": str(settings.folder),
        "SLIPWAY_GATEWAY_PORT": str(settings.port),
        "SLIPWAY_GATEWAY_ADMIN_PORT": str(settings.admin_port),
        "SLIPWAY_GATEWAY_OIP_PORT": str(settings.oip_port),
    }
