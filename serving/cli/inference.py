"""How a payload becomes a request to the gateway, and an answer a value."""

from __future__ import annotations

import base64
import json
import mimetypes
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import quote, urlsplit

import grpc
import httpx

from serving.cli import client, errors
from serving.protocol import inference_pb2, inference_pb2_grpc

VERSION_HEADER = "slipway-model-version"
STAGE_HEADER = "slipway-stage"
TEXT = "text/plain; charset=utf-8"
JSON = "application/json"
BINARY = "application/octet-stream"

MAGIC = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF8", "image/gif"),
)


@dataclass(frozen=True, kw_only=True)
class Payload:
    body: bytes
    content_type: str


@dataclass(frozen=True, kw_only=True)
class Call:
    """One request; without stage and version it goes to production."""

    model: str
    payload: Payload
    stage: str | None = None
    version: int | None = None
    timeout_s: float


@dataclass(frozen=True, kw_only=True)
class Answer:
    version: int | None
    output: Any


def content_type(name: str, body: bytes) -> str:
    """What a file holds: by its first bytes where they tell, then by its name, then by whether it is text."""
    for magic, kind in MAGIC:
        if body.startswith(magic):
            return kind
    if body[:4] == b"RIFF" and body[8:12] == b"WEBP":
        return "image/webp"
    guessed = mimetypes.guess_type(name)[0]
    if guessed is not None:
        return TEXT if guessed == "text/plain" else guessed
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return BINARY
    return JSON if text.lstrip()[:1] in ("{", "[") and text.strip() else TEXT


def from_json(text: str) -> Payload:
    """A JSON payload, checked here: a shell's quotes are the likeliest mistake.

    Raises:
        Usage: it is not JSON.
    """
    try:
        json.loads(text)
    except ValueError as error:
        raise errors.Usage(f"--json is not JSON ({error}): {text[:100]!r}") from error
    return Payload(body=text.encode(), content_type=JSON)


def by_rest(url: str, call: Call, *, transport: httpx.BaseTransport | None = None) -> Answer:
    """POST it.

    Raises:
        CliError: of the class that fits the gateway's or the model's problem.
    """
    path = f"/predictions/{quote(call.model, safe='')}" + (f"/{call.version}" if call.version else "")
    headers = {"content-type": call.payload.content_type} | ({STAGE_HEADER: call.stage} if call.stage else {})
    try:
        with httpx.Client(base_url=url, timeout=call.timeout_s, transport=transport) as http:
            answer = http.post(path, content=call.payload.body, headers=headers)
    except httpx.TimeoutException as error:
        raise errors.Unavailable(f"no answer from {url} within {call.timeout_s:g} s") from error
    except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
        raise errors.Usage(f"{url!r} is no URL of a gateway ({error}); write http://HOST:PORT") from error
    except httpx.TransportError as error:
        raise _unreachable(url, str(error) or type(error).__name__) from error
    if not answer.is_success:
        raise client.from_answer(answer)
    return Answer(version=_number(answer.headers.get(VERSION_HEADER)), output=decoded(answer.content))


def by_grpc(url: str, call: Call) -> Answer:
    """The same request by TorchServe's gRPC service. Raises CliError."""
    address = urlsplit(url)
    default_port = 443 if address.scheme == "https" else 80
    target = f"{address.hostname}:{address.port or default_port}"
    unlimited = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    channel = (
        grpc.secure_channel(target, grpc.ssl_channel_credentials(), options=unlimited)
        if address.scheme == "https"
        else grpc.insecure_channel(target, options=unlimited)
    )
    request = inference_pb2.PredictionsRequest(
        model_name=call.model,
        model_version=str(call.version) if call.version else "",
        input={"data": call.payload.body},
    )
    with channel:
        stub = inference_pb2_grpc.InferenceAPIsServiceStub(channel)
        try:
            metadata = ((STAGE_HEADER, call.stage),) if call.stage else ()
            response, ended = stub.Predictions.with_call(request, timeout=call.timeout_s, metadata=metadata)
        except grpc.RpcError as error:
            raise _grpc_problem(url, error, call.timeout_s) from error
    said = {str(key): value for key, value in (*(ended.initial_metadata() or ()), *(ended.trailing_metadata() or ()))}
    return Answer(version=_number(cast("str | None", said.get(VERSION_HEADER))), output=decoded(response.prediction))


def decoded(body: bytes) -> Any:
    """JSON as a value, text as text, anything else as base64."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return base64.b64encode(body).decode()
    try:
        return json.loads(text)
    except ValueError:
        return text


def is_table(answer: Any) -> bool:
    """Whether it is a list of objects with the same plain members: labels with scores, entities."""
    if not isinstance(answer, list) or not answer:
        return False
    rows = cast("list[Any]", answer)
    return all(isinstance(row, dict) and list(row) == list(rows[0]) for row in rows) and not any(
        isinstance(value, dict | list) for row in rows for value in row.values()
    )


def _grpc_problem(url: str, error: grpc.RpcError, timeout_s: float) -> errors.CliError:
    call = cast(grpc.Call, error)
    code, details = call.code(), call.details() or ""
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return errors.Unavailable(details or f"no answer from {url} within {timeout_s:g} s")
    if code is grpc.StatusCode.UNAVAILABLE and "connect" in details.lower():
        return _unreachable(url, details.splitlines()[0])
    return errors.for_grpc(code)(f"{details or 'no details'} (gRPC {code.name})")


def _unreachable(url: str, why: str) -> errors.Unavailable:
    return errors.Unavailable(
        f'the gateway at {url} does not answer ({why}); "slipway status" tells whether the stack runs'
    )


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isdigit() else None
