"""Refuses request bodies over the limit before they are read into memory."""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serving.api import problems


class Middleware:
    def __init__(self, app: ASGIApp, *, limit_bytes: int) -> None:
        self._app = app
        self._limit = limit_bytes
        self._detail = f"the body is larger than {limit_bytes} bytes, the most that the control plane takes"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        declared = dict(scope["headers"]).get(b"content-length", b"0")
        if declared.isdigit() and int(declared) > self._limit:
            headers = {"connection": "close"}
            answer = problems.problem(
                413, kind="body-too-large", detail=self._detail, headers=headers, limit_bytes=self._limit
            )
            await answer(scope, receive, send)
            return
        received = 0

        async def counted() -> Message:
            """A body without a declared length is counted as it comes; FastAPI lets this one exception through."""
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._limit:
                raise HTTPException(413, self._detail, {"connection": "close"})
            return message

        await self._app(scope, counted, send)
