"""``inference.GRPCInferenceService``: each call becomes a request to the Open Inference Protocol's REST addresses, sent
back through the gateway's own listener. Stages, weights, versions, limits and errors are therefore the same in both.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import Any, ParamSpec, TypeVar

import grpc
import httpx
import orjson

from serving.gateway import errors, names, tensors
from serving.gateway.settings import LOOPBACK
from serving.protocol import inference_pb2, inference_pb2_grpc
from serving.protocol import open_inference_pb2 as pb
from serving.protocol import open_inference_pb2_grpc as pb_grpc

# Sizes and deadlines are the gateway's to judge.
OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.so_reuseport", 0),
)
MAX_CONNECTIONS = 256

FORWARDED = (names.STAGE_HEADER, "x-request-id", "traceparent", "tracestate", "authorization")
"""Metadata that goes with the request."""

HEADER_LENGTH = "inference-header-content-length"

CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    408: grpc.StatusCode.DEADLINE_EXCEEDED,
    409: grpc.StatusCode.ABORTED,
    413: grpc.StatusCode.RESOURCE_EXHAUSTED,
    415: grpc.StatusCode.INVALID_ARGUMENT,
    422: grpc.StatusCode.INVALID_ARGUMENT,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    501: grpc.StatusCode.UNIMPLEMENTED,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}

Context = Any
Arguments = ParamSpec("Arguments")
Answer = TypeVar("Answer")


class Refused(Exception):
    """The gateway answered with an error."""

    def __init__(self, status: int, detail: str, version: str | None) -> None:
        super().__init__(detail)
        self.code = CODES.get(status, grpc.StatusCode.INVALID_ARGUMENT if status < 500 else grpc.StatusCode.INTERNAL)
        self.status = status
        self.version = version


def _told(method: Callable[Arguments, Awaitable[Answer]]) -> Callable[Arguments, Awaitable[Answer]]:
    """Ends a call with the status that an error means."""

    @functools.wraps(method)
    async def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Answer:
        context: Context = args[2]  # gRPC passes (servicer, request, context)
        try:
            return await method(*args, **kwargs)
        except Refused as error:
            code, detail = error.code, str(error)
            if error.version:
                context.set_trailing_metadata(((names.VERSION_HEADER, error.version),))
        except errors.TensorError as error:
            code, detail = grpc.StatusCode.INVALID_ARGUMENT, str(error)
        except httpx.TimeoutException:
            code, detail = grpc.StatusCode.DEADLINE_EXCEEDED, "the deadline passed before the model answered"
        except httpx.HTTPError as error:
            code, detail = grpc.StatusCode.UNAVAILABLE, f"the gateway does not answer its own adapter: {error!r}"
        return await context.abort(code, detail)

    return call


class Adapter(pb_grpc.GRPCInferenceServiceServicer, inference_pb2_grpc.InferenceAPIsServiceServicer):
    """The service; ``client`` speaks to the gateway's listener."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client

    @_told
    async def ServerLive(self, request: pb.ServerLiveRequest, context: Context) -> pb.ServerLiveResponse:
        return pb.ServerLiveResponse(live=await self._is("/v2/health/live", context))

    @_told
    async def ServerReady(self, request: pb.ServerReadyRequest, context: Context) -> pb.ServerReadyResponse:
        return pb.ServerReadyResponse(ready=await self._is("/v2/health/ready", context))

    @_told
    async def ServerMetadata(self, request: pb.ServerMetadataRequest, context: Context) -> pb.ServerMetadataResponse:
        answer = orjson.loads((await self._get("/v2", context)).content)
        return pb.ServerMetadataResponse(
            name=answer["name"], version=answer["version"], extensions=answer["extensions"]
        )

    @_told
    async def ModelReady(self, request: pb.ModelReadyRequest, context: Context) -> pb.ModelReadyResponse:
        return pb.ModelReadyResponse(ready=await self._is(f"{_address(request.name, request.version)}/ready", context))

    @_told
    async def ModelMetadata(self, request: pb.ModelMetadataRequest, context: Context) -> pb.ModelMetadataResponse:
        answer = orjson.loads((await self._get(_address(request.name, request.version), context)).content)

        def listed(kind: str) -> list[pb.ModelMetadataResponse.TensorMetadata]:
            return [
                pb.ModelMetadataResponse.TensorMetadata(
                    name=tensor["name"], datatype=tensor["datatype"], shape=tensor["shape"]
                )
                for tensor in answer.get(kind, [])
            ]

        return pb.ModelMetadataResponse(
            name=answer.get("name", request.name),
            versions=answer.get("versions", []),
            platform=answer.get("platform", ""),
            inputs=listed("inputs"),
            outputs=listed("outputs"),
        )

    @_told
    async def ModelInfer(self, request: pb.ModelInferRequest, context: Context) -> pb.ModelInferResponse:
        body, header_length = tensors.request_body(request).encode()
        answer = await self._client.post(
            f"{_address(request.model_name, request.model_version)}/infer",
            content=body,
            headers=_headers(context) | {"content-type": "application/octet-stream", HEADER_LENGTH: str(header_length)},
            timeout=_timeout(context),
        )
        self._check(answer, context)
        length = answer.headers.get(HEADER_LENGTH)
        try:
            return tensors.response(answer.content, header_length=None if length is None else int(length))
        except errors.TensorError as error:
            raise Refused(500, str(error), answer.headers.get(names.VERSION_HEADER)) from error

    async def Ping(self, request: Any, context: Context) -> inference_pb2.TorchServeHealthResponse:
        """TorchServe's own health call, routed here because no one server process stands for the gateway."""
        return inference_pb2.TorchServeHealthResponse(health='{"status": "Healthy"}')

    async def _is(self, address: str, context: Context) -> bool:
        """Whether an address says yes; 503 is a no, anything else an error."""
        try:
            await self._get(address, context)
        except Refused as error:
            if error.status == 503:
                return False
            raise
        return True

    async def _get(self, address: str, context: Context) -> httpx.Response:
        answer = await self._client.get(address, headers=_headers(context), timeout=_timeout(context))
        self._check(answer, context)
        return answer

    def _check(self, answer: httpx.Response, context: Context) -> None:
        version = answer.headers.get(names.VERSION_HEADER)
        if answer.status_code >= 400:
            raise Refused(answer.status_code, _detail(answer), version)
        if version:
            context.set_trailing_metadata(((names.VERSION_HEADER, version),))


async def serve(*, port: int, gateway: str) -> grpc.aio.Server:
    """Start the adapter on a loopback port.

    Args:
        gateway: URL of the gateway's listener.

    Raises:
        InvalidSetting: the port is taken.
    """
    limits = httpx.Limits(max_connections=MAX_CONNECTIONS, max_keepalive_connections=MAX_CONNECTIONS)
    client = httpx.AsyncClient(base_url=gateway, limits=limits, trust_env=False)
    server = grpc.aio.server(options=OPTIONS)
    adapter = Adapter(client)
    pb_grpc.add_GRPCInferenceServiceServicer_to_server(adapter, server)
    inference_pb2_grpc.add_InferenceAPIsServiceServicer_to_server(adapter, server)
    try:
        server.add_insecure_port(f"{LOOPBACK}:{port}")
    except RuntimeError as error:
        raise errors.InvalidSetting(f"port {port} for the gateway's OIP adapter is taken: {error}") from error
    await server.start()
    return server


def _address(model: str, version: str) -> str:
    if not model or "/" in model + version:
        raise Refused(400, "name a model (and a version by its number)", None)
    return f"/v2/models/{model}/versions/{version}" if version else f"/v2/models/{model}"


def _headers(context: Context) -> dict[str, str]:
    metadata = {str(name).lower(): value for name, value in context.invocation_metadata() or ()}
    return {name: metadata[name] for name in FORWARDED if isinstance(metadata.get(name), str)}


def _timeout(context: Context) -> float | None:
    """Seconds that the caller still waits; without a deadline of its own the gateway's timeout holds."""
    left = context.time_remaining()
    return None if left is None else max(0.001, left)


def _detail(answer: httpx.Response) -> str:
    try:
        return str(orjson.loads(answer.content)["detail"])
    except (ValueError, KeyError, TypeError):
        return f"the request failed with HTTP {answer.status_code}"
