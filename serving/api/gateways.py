"""What gateways ask and tell: their configuration, and which revision they serve."""

from __future__ import annotations

from typing import Annotated

import fastapi
from starlette.responses import Response

from serving.api import paging, routes, schemas
from serving.api.context import Current, Wait
from serving.api.replicas import Name
from serving.db import reports
from serving.domain import errors, facts, wire

router = fastapi.APIRouter(prefix="/v1", tags=["gateways"], route_class=routes.Route)


@router.get(
    "/gateway/config",
    summary="What every gateway is to serve",
    response_model=wire.GatewayConfig,
    responses={204: {"description": "the revision is still the newest"}},
)
async def get_config(
    current: Current,
    revision: Annotated[
        str | None, fastapi.Query(max_length=64, description="the one that the gateway has: wait for another")
    ] = None,
    wait_s: Wait = 0,
) -> Response:
    """204 after the wait when there is nothing new."""
    if revision is not None:
        await current.board.wait_for(
            lambda snapshot: snapshot.config.revision != revision or None, timeout_s=current.wait_s(wait_s)
        )
    config = current.snapshot.config
    if config.revision == revision:
        return Response(status_code=204)
    return Response(config.model_dump_json(), media_type="application/json")


@router.put("/gateways/{gateway}", summary="A gateway's report")
def report_gateway(gateway: Name, body: wire.GatewayReport, current: Current) -> schemas.GatewayAck:
    if body.gateway != gateway:
        raise errors.Invalid(
            f"the report is of gateway {body.gateway}, the path names {gateway}; they have to be the same",
            kind="gateway-mismatch",
        )
    current.record(lambda session: reports.record_gateway(session, body, now=current.clock()))
    return schemas.GatewayAck(revision=current.snapshot.config.revision)


@router.get("/gateways", summary="List gateways")
def list_gateways(
    request: fastapi.Request, current: Current, limit: paging.Limit = paging.DEFAULT_LIMIT, cursor: paging.Cursor = None
) -> paging.Page[schemas.Gateway]:
    snapshot = current.snapshot
    with current.database.read() as session:
        found = [
            facts.Gateway(report=wire.GatewayReport.model_validate(row.report), last_seen=row.last_seen)
            for row in reports.gateways(session, after=cursor, limit=limit + 1)
        ]
    return paging.page(
        request,
        found,
        limit=limit,
        shape=lambda gateway: schemas.Gateway.of(
            gateway, live=snapshot.facts.is_live(gateway.last_seen), newest=snapshot.config.revision
        ),
        key=lambda gateway: gateway.report.gateway,
    )
