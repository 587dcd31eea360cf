"""What can go wrong with one item, and how a client is told.

An error of this tree travels to the client as a problem document with its own status; anything else that a handler
raises becomes a 500 that names the exception. Over gRPC TorchServe drops an item's status, so the document itself
carries it: its bytes always begin with :data:`PREFIX`, which the gateway looks for.
"""

from __future__ import annotations

import math
from typing import Any

import orjson

PREFIX = b'{"type":"urn:slipway:error:'
"""First bytes of every error body."""

MAX_DETAIL_CHARACTERS = 4096
"""A detail is for a person; past this it is cut."""


class HandlerError(Exception):
    """Base of everything that a handler says to a client.

    Args:
        detail: what was wrong, what was expected, and what to do next.
        extras: further members of the problem document, such as ``limit_bytes``.
    """

    kind = "handler"
    status = 500
    title = "The handler failed"

    def __init__(self, detail: str, **extras: Any) -> None:
        super().__init__(detail)
        self.detail = detail
        self.extras = extras


class InvalidInput(HandlerError):
    """The item cannot be used as it is: the client must change it."""

    kind = "invalid-input"
    status = 400
    title = "The input is not valid"


class UnsupportedMedia(HandlerError):
    """The item is of a type that this handler does not read."""

    kind = "unsupported-media"
    status = 415
    title = "The input's type is not supported"


class TooLarge(HandlerError):
    """The item is over a limit; name the limit in the detail."""

    kind = "too-large"
    status = 413
    title = "The input is over a limit"


class OutputTooLarge(HandlerError):
    """The answer is over the response limit."""

    kind = "output-too-large"
    title = "The answer is over the response limit"

    @classmethod
    def over(cls, size: int, limit: int) -> OutputTooLarge:
        """The error of an answer of ``size`` bytes."""
        return cls(
            f"the answer has {size} bytes, the limit is {limit}; ask for less, or raise serving.max_response_bytes in "
            "model.yaml",
            limit_bytes=limit,
        )


class BadOutput(HandlerError):
    """The handler's answer cannot be sent: the model's author must change it."""

    kind = "bad-output"
    title = "The handler's answer cannot be used"


class LoadError(Exception):
    """The version cannot be loaded; the text reaches the person who promoted it."""


def document(kind: str, status: int, title: str, detail: str, extras: dict[str, Any]) -> bytes:
    """A problem document as compact JSON; ``type`` and ``status`` come first (see :data:`PREFIX`)."""
    members: dict[str, Any] = {
        "type": f"urn:slipway:error:{kind}",
        "status": status,
        "title": title,
        "detail": printable(detail)[:MAX_DETAIL_CHARACTERS],
    }
    members.update({key: value for key, value in extras.items() if key not in members})
    return orjson.dumps(members, default=lambda value: printable(str(value)))


def body(error: BaseException, **extras: Any) -> tuple[int, bytes]:
    """Status and problem document of an exception.

    Args:
        extras: further members, after the error's own.

    Returns:
        The HTTP status, and the document's bytes.
    """
    if isinstance(error, HandlerError):
        return error.status, document(error.kind, error.status, error.title, error.detail, error.extras | extras)
    detail = f"{type(error).__name__}: {error}"
    return 500, document("handler", 500, "The handler raised an exception", detail, extras)


def printable(text: str) -> str:
    """The text without lone surrogates, which no UTF-8 encoder takes (and which would kill the worker)."""
    return text.encode("utf-8", errors="replace").decode("utf-8")


def encode_json(value: Any) -> bytes:
    """Compact JSON of a handler's answer.

    numpy scalars and arrays, and anything with ``tolist`` (a torch tensor), are written as numbers and lists.
    Mapping keys that are no text are written as text.

    Raises:
        BadOutput: a value that JSON does not have: NaN, infinity, an object of a class of its own, a lone surrogate.
    """
    try:
        encoded = orjson.dumps(value, default=_plain, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS)
    except (TypeError, orjson.JSONEncodeError) as error:
        raise BadOutput(
            f"the answer is no JSON ({error}); return text, bytes, or numbers, lists and mappings of those"
        ) from error
    # orjson writes NaN and infinity as null: silence where the client needs to know. The check costs a walk over
    # the answer, and only where a null appears at all.
    if b"null" in encoded:
        where = _not_finite(value, "$")
        if where is not None:
            raise BadOutput(
                f"the answer holds a number that is not finite, at {where}; the model's output is broken for this input"
            )
    return encoded


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, (set, frozenset, tuple)):
        return list(value)
    raise TypeError(f"{type(value).__name__} is not serializable")


def _not_finite(value: Any, where: str) -> str | None:
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, float):
        return None if math.isfinite(value) else where
    if isinstance(value, dict):
        pairs = [(f"{where}.{key}", child) for key, child in value.items()]
    elif isinstance(value, (list, tuple, set, frozenset)):
        pairs = [(f"{where}[{index}]", child) for index, child in enumerate(value)]
    else:
        return None
    for path, child in pairs:
        found = _not_finite(child, path)
        if found is not None:
            return found
    return None
