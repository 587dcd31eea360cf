"""Every error as RFC 9457 problem+json: ``type`` is ``urn:slipway:error:<kind>``, ``detail`` says what to do."""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import Any

import fastapi
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from sqlalchemy import exc
from starlette.exceptions import HTTPException

from serving.domain import errors

MEDIA_TYPE = "application/problem+json"
MAX_REPORTED_ERRORS = 20

_log = logging.getLogger(__name__)

_STATUS: dict[type[errors.DomainError], int] = {
    errors.NotFound: 404,
    errors.Conflict: 409,
    errors.Invalid: 422,
    errors.Unavailable: 503,
}


def problem(
    status: int, *, kind: str, detail: str, headers: dict[str, str] | None = None, **extras: Any
) -> JSONResponse:
    """A problem document; ``extras`` become members beside the standard ones."""
    body = {
        "type": f"urn:slipway:error:{kind}",
        "status": status,
        "title": HTTPStatus(status).phrase,
        "detail": detail,
        **extras,
    }
    return JSONResponse(body, status_code=status, media_type=MEDIA_TYPE, headers=headers)


def from_domain(error: errors.DomainError) -> JSONResponse:
    status = next((code for kind, code in _STATUS.items() if isinstance(error, kind)), 500)
    headers = {"retry-after": str(error.retry_after_s)} if isinstance(error, errors.Unavailable) else None
    return problem(status, kind=error.reason_kind, detail=error.detail, headers=headers, **error.extras)


def install(app: fastapi.FastAPI) -> None:
    """Register the handlers of all errors on an application."""

    @app.exception_handler(errors.DomainError)
    def _domain(_: fastapi.Request, error: errors.DomainError) -> JSONResponse:  # pyright: ignore[reportUnusedFunction]
        return from_domain(error)

    @app.exception_handler(RequestValidationError)
    def _validation(_: fastapi.Request, error: RequestValidationError) -> JSONResponse:  # pyright: ignore[reportUnusedFunction]
        found = error.errors()
        if any(entry["type"] == "json_invalid" for entry in found):
            return problem(400, kind="malformed-json", detail=f"the body is not JSON: {found[0]['ctx']['error']}")
        violations = [_violation(entry) for entry in found[:MAX_REPORTED_ERRORS]]
        first = violations[0]
        where = first.get("pointer") or first.get("parameter")
        return problem(422, kind="validation", detail=f"{where}: {first['detail']}", errors=violations)

    @app.exception_handler(HTTPException)
    def _http(_: fastapi.Request, error: HTTPException) -> JSONResponse:  # pyright: ignore[reportUnusedFunction]
        kind = {404: "no-such-path", 405: "method-not-allowed", 413: "body-too-large"}.get(error.status_code, "http")
        headers = dict(error.headers) if error.headers else None
        return problem(error.status_code, kind=kind, detail=str(error.detail), headers=headers)

    @app.exception_handler(exc.DataError)
    def _data(_: fastapi.Request, error: exc.DataError) -> JSONResponse:  # pyright: ignore[reportUnusedFunction]
        detail = f"the database cannot store a value of the request: {str(error.orig).splitlines()[0]}"
        return problem(422, kind="unstorable", detail=detail)

    @app.exception_handler(Exception)
    def _fault(request: fastapi.Request, error: Exception) -> JSONResponse:  # pyright: ignore[reportUnusedFunction]
        _log.error("request failed", exc_info=error, extra={"method": request.method, "path": request.url.path})
        return problem(500, kind="internal", detail="the control plane failed; its log has the traceback")


def _violation(entry: Any) -> dict[str, str]:
    """One of pydantic's errors: a JSON pointer into the body, or the name of a parameter."""
    source, *path = entry["loc"]
    message = str(entry["msg"])
    if source == "body":
        return {"pointer": "#" + "".join(f"/{_escape(str(part))}" for part in path), "detail": message}
    return {"parameter": ".".join(str(part) for part in path), "in": str(source), "detail": message}


def _escape(part: str) -> str:
    return part.replace("~", "~0").replace("/", "~1")
