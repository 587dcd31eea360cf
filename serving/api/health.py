"""``/healthz``, ``/readyz`` and ``/metrics``."""

from __future__ import annotations

import fastapi
import prometheus_client
import sqlalchemy as sa
from fastapi.responses import JSONResponse
from starlette.responses import Response

from serving.api import metrics, problems
from serving.api.context import Context, Current
from serving.db import migrate, stages
from serving.domain import errors

router = fastapi.APIRouter(tags=["health"])


@router.get("/healthz", summary="The process lives; restart it when this does not answer")
async def healthz() -> dict[str, str]:
    return {"status": "ok", "version": metrics.release()}


@router.get("/readyz", summary="Whether it can do its work: database, schema, first reconciliation")
def readyz(current: Current) -> JSONResponse:
    checks: dict[str, str] = {}
    try:
        with current.database.read() as session:
            session.execute(sa.select(1))
        checks["database"] = "ok"
        checks["migrations"] = "ok" if migrate.is_current(current.database) else "the schema is of another release"
        checks["controller"] = "ok" if current.board.snapshot is not None else "has not reconciled yet"
    except errors.DomainError as error:
        checks["database"] = error.detail
    if all(outcome == "ok" for outcome in checks.values()):
        return JSONResponse({"status": "ok", "checks": checks})
    wrong = "; ".join(f"{name}: {outcome}" for name, outcome in checks.items() if outcome != "ok")
    return problems.problem(503, kind="not-ready", detail=wrong, headers={"retry-after": "1"}, checks=checks)


@router.get("/metrics", summary="Prometheus metrics", response_class=Response)
def expose(current: Current) -> Response:
    body = current.metrics.expose(snapshot=current.board.snapshot, rollouts_by_state=_rollouts(current))
    return Response(body, media_type=prometheus_client.CONTENT_TYPE_LATEST)


def _rollouts(current: Context) -> dict[str, int] | None:
    try:
        with current.database.read() as session:
            return stages.count_by_state(session)
    except errors.Unavailable:
        return None
