"""``Idempotency-Key`` on every POST: the first answer is kept for 24 hours and given again to repeats.

Only successes are kept. An error changed nothing, so a repeat may well be tried afresh.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Coroutine
from typing import Any

import anyio.to_thread
import fastapi
from starlette.responses import Response

from serving.api import context, problems, routes
from serving.db import idempotency
from serving.domain import errors

REPLAYED = "idempotency-replayed"
MAX_KEY_CHARS = 200

_KEPT_HEADERS = ("content-type", "location")


class Route(routes.Route):
    """Routes of the API's writes."""

    def get_route_handler(self) -> Callable[[fastapi.Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def keyed(request: fastapi.Request) -> Response:
            key = request.headers.get("idempotency-key")
            if request.method != "POST" or not key or len(key) > MAX_KEY_CHARS:
                return await handle(request)
            request = routes.Request(request.scope, request.receive)
            fingerprint = hashlib.sha256(request.url.query.encode() + b"\0" + await request.body()).hexdigest()
            entry = _Entry(request.app.state.context, key=key, path=request.url.path)
            try:
                answer = await anyio.to_thread.run_sync(entry.claim, fingerprint)
            except errors.DomainError as error:
                return problems.from_domain(error)
            if answer is not None:
                headers = answer.headers | {REPLAYED: "true"}
                return Response(answer.body, status_code=answer.status, headers=headers)
            try:
                response = await handle(request)
            except BaseException:
                with anyio.CancelScope(shield=True):
                    await anyio.to_thread.run_sync(entry.release)
                raise
            await anyio.to_thread.run_sync(entry.settle, response)
            return response

        return keyed


class _Entry:
    def __init__(self, current: context.Context, *, key: str, path: str) -> None:
        self._current = current
        self._key = key
        self._path = path

    def claim(self, fingerprint: str) -> idempotency.Answer | None:
        with self._current.database.exclusive() as session:
            return idempotency.claim(
                session, key=self._key, path=self._path, fingerprint=fingerprint, now=self._current.clock()
            )

    def settle(self, response: Response) -> None:
        """Keep the answer. If the database is away now, a repeat is worked on again and finds what was done."""
        headers = {name: response.headers[name] for name in _KEPT_HEADERS if name in response.headers}
        answer = idempotency.Answer(
            status=response.status_code, headers=headers, body=bytes(response.body).decode("utf-8")
        )
        try:
            with self._current.database.write() as session:
                idempotency.settle(session, key=self._key, path=self._path, answer=answer)
        except errors.Unavailable:
            return

    def release(self) -> None:
        try:
            with self._current.database.write() as session:
                idempotency.release(session, key=self._key, path=self._path)
        except errors.Unavailable:
            return


def request_key(path: str, key: str | None) -> str | None:
    """A key of fixed length that is unique for a path: rollouts carry it for good."""
    return None if key is None else hashlib.sha256(f"{path}\0{key}".encode()).hexdigest()
