"""What a client sent, one item at a time, whatever protocol brought it.

TorchServe hands a worker a list of requests, each a mapping of parts. A request is one item, unless it says that it
holds several: ``{"instances": [...]}``, or Open Inference Protocol tensors with a first dimension over one.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from handlers import errors

BODY_PARTS = ("body", "data")
"""Names under which TorchServe brings a REST body (``body``) and clients send theirs over gRPC (``data``)."""

STREAM_INPUT = "slipway-stream"
"""gRPC input that says, when ``true``, that the call is StreamPredictions.

TorchServe does not tell, and pieces that are sent to a unary call break its worker for good. Only what stands in front
of TorchServe knows; it must not let a client's own input of this name pass.
"""

MAX_ROWS = 1024
"""Items in one request; more belong into several."""

Value = bytes | bytearray | str | dict[str, Any] | list[Any] | int | float | bool | None
"""A part's value; of the body, JSON is parsed already where it parses."""


@dataclass(frozen=True, kw_only=True)
class Item:
    """One thing to predict.

    Attributes:
        value: the body, or the one part that stands for it.
        parts: all parts, by name (form fields, query parameters, gRPC inputs).
        headers: request headers by lower-case name; empty over gRPC.
        content_type: of the value, lower-case and without parameters; empty when unknown.
        tensors: named inputs of this row, when the Open Inference Protocol brought it: numpy arrays without the
            batch dimension, and for BYTES a list of bytes.
        may_stream: whether the call that brought it can take an answer in pieces.
    """

    value: Value
    parts: Mapping[str, Value] = field(default_factory=dict[str, Value])
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    content_type: str = ""
    tensors: Mapping[str, Any] = field(default_factory=dict[str, Any])
    may_stream: bool = False

    def body(self) -> bytes | bytearray:
        """The value as bytes.

        A JSON object may carry them in base64 under ``b64``, ``image`` or ``data``.

        Raises:
            InvalidInput: the value is JSON of another form, or its base64 is broken.
        """
        if isinstance(self.value, (bytes, bytearray)):
            if self.content_type == "application/json":
                self.json()  # it was not parsed before, so this tells why
            return self.value
        if isinstance(self.value, str):
            return _base64(self.value) if self.content_type == "application/json" else self.value.encode()
        if isinstance(self.value, dict):
            for name in ("b64", "image", "data"):
                inner = self.value.get(name)
                if isinstance(inner, dict) and isinstance(inner.get("b64"), str):
                    return _base64(inner["b64"])
                if isinstance(inner, str):
                    return _base64(inner)
        self._require_body()
        raise errors.InvalidInput(
            f"the body is JSON of type {_kind(self.value)}; send the bytes themselves, or base64 as "
            '{"b64": "…"} or {"image": "…"}'
        )

    def text(self) -> str:
        """The value as text: a text body, a JSON string, or ``{"text": "…"}``.

        Raises:
            InvalidInput: it is none of these, or not UTF-8.
        """
        value = self.value
        if isinstance(value, (bytes, bytearray)):
            parsed = self.json() if self.content_type == "application/json" else None
            if parsed is None:
                return _utf8(value)
            value = parsed
        if isinstance(value, str):
            return value
        if isinstance(value, dict):
            inner = value.get("text", value.get("data"))
            if isinstance(inner, str):
                return inner
        self._require_body()
        raise errors.InvalidInput(
            f'the body is JSON of type {_kind(value)}; send text, a JSON string, or {{"text": "…"}}'
        )

    def json(self) -> Any:
        """The value as JSON.

        Raises:
            InvalidInput: it does not parse.
        """
        if not isinstance(self.value, (bytes, bytearray, str)) or (
            isinstance(self.value, str) and self.content_type == "application/json"
        ):
            return self.value
        try:
            return orjson.loads(self.value)
        except orjson.JSONDecodeError as error:
            raise errors.InvalidInput(f"the body is no JSON: {error}") from error

    def fields(self) -> dict[str, Any]:
        """The value as a JSON object, or the named parts where there is no body.

        Raises:
            InvalidInput: the value is JSON of another type.
        """
        if self.tensors:
            return dict(self.tensors)
        if isinstance(self.value, (bytes, bytearray)) and self.content_type not in ("", "application/json"):
            return {}
        named = {name: value for name, value in self.parts.items() if name not in BODY_PARTS}
        if self.value is None or (named and not self.value):
            return named
        try:
            parsed = self.json()
        except errors.InvalidInput:
            if named:
                return named
            raise
        if not isinstance(parsed, dict):
            raise errors.InvalidInput(f"the body is JSON of type {_kind(parsed)}; send an object")
        return {**named, **parsed}

    def _require_body(self) -> None:
        if self.value is None and "body" not in self.parts:
            known = ", ".join(sorted(self.parts)) or "none"
            raise errors.InvalidInput(
                "there is no body; send the input as the body with its content-type (curl --data-binary @FILE "
                f'-H "content-type: …"), or as a form part or gRPC input named "data" (parts that came: {known})'
            )

    def option(self, name: str) -> Any:
        """A request's own setting: a part of that name, or a member of a JSON object body."""
        if name in self.parts and name not in BODY_PARTS:
            value = self.parts[name]
            return value.decode("utf-8", "replace") if isinstance(value, (bytes, bytearray)) else value
        return self.value.get(name) if isinstance(self.value, dict) else None


def of_request(parts: Mapping[str, Value], headers: Mapping[str, Any]) -> Item:
    """The item that a request is.

    Args:
        parts: TorchServe's mapping of part name → value.
        headers: request headers as TorchServe keeps them, with ``{"content-type": …}`` under each part's name.
    """
    plain = {name.lower(): value for name, value in headers.items() if isinstance(value, str)}
    may_stream = bool(plain) or parts.get(STREAM_INPUT) in (b"true", "true")
    if STREAM_INPUT in parts:
        parts = {name: value for name, value in parts.items() if name != STREAM_INPUT}
    name = next((name for name in BODY_PARTS if name in parts), None)
    if name is None and len(parts) == 1:
        name = next(iter(parts))
    described = headers.get(name) if name is not None else None
    declared = described.get("content-type") if isinstance(described, dict) else None
    content_type = (declared or plain.get("content-type") or "").split(";")[0].strip().lower()
    value = parts[name] if name is not None else None
    # Over gRPC no part has a type; JSON is told by its first byte.
    looks_like_json = not content_type and isinstance(value, (bytes, bytearray)) and bytes(value[:1]) in (b"{", b"[")
    if isinstance(value, (bytes, bytearray)) and (looks_like_json or content_type == "application/json"):
        with contextlib.suppress(orjson.JSONDecodeError):
            value, content_type = orjson.loads(value), "application/json"
    return Item(value=value, parts=parts, headers=plain, content_type=content_type, may_stream=may_stream)


def instances(item: Item) -> list[Item] | None:
    """The items of a ``{"instances": [...]}`` body; ``None`` for any other."""
    if not isinstance(item.value, dict) or set(item.value) != {"instances"}:
        return None
    rows: Any = item.value["instances"]
    if not isinstance(rows, list) or not 1 <= len(rows) <= MAX_ROWS:
        raise errors.InvalidInput(f'"instances" must be a list of 1 to {MAX_ROWS} items', limit_rows=MAX_ROWS)
    return [Item(value=row, parts=item.parts, headers=item.headers, content_type="application/json") for row in rows]


def _base64(text: str) -> bytes:
    try:
        # A data URL's head is no part of the content.
        return base64.b64decode(text.partition(",")[2] if text.startswith("data:") else text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise errors.InvalidInput(f"the text is no base64: {error}") from error


def _utf8(value: bytes | bytearray) -> str:
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError as error:
        raise errors.InvalidInput(f"the text is not UTF-8: byte {error.start} is {value[error.start]:#04x}") from error


def _kind(value: Any) -> str:
    names = {dict: "object", list: "array", str: "string", bool: "boolean", int: "number", float: "number"}
    return names.get(type(value), "null" if value is None else type(value).__name__)
