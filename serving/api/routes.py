"""Reads JSON strictly: what Python lets pass (NaN, half a surrogate pair, endless nesting) would break others later."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from typing import Any

import fastapi
import pydantic_core
from fastapi.routing import APIRoute
from starlette.responses import Response


class Request(fastapi.Request):
    async def json(self) -> Any:
        try:
            return pydantic_core.from_json(await self.body(), allow_inf_nan=False)
        except ValueError as error:
            raise json.JSONDecodeError(str(error), "", 0) from error


class Route(APIRoute):
    """The route class of the whole API."""

    def get_route_handler(self) -> Callable[[fastapi.Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def strict(request: fastapi.Request) -> Response:
            # A body can be read once: a request that was opened before is handed on as it is.
            opened = request if isinstance(request, Request) else Request(request.scope, request.receive)
            return await handle(opened)

        return strict
