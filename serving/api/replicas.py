"""What agents ask and tell: assignments of pools, reports of replicas."""

from __future__ import annotations

from typing import Annotated

import fastapi

from serving.api import paging, routes, schemas
from serving.api.context import Current, Wait
from serving.db import reports
from serving.domain import errors, wire

router = fastapi.APIRouter(prefix="/v1", tags=["replicas"], route_class=routes.Route)

PART_NAME = r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,198}[A-Za-z0-9])?$"
"""Names of replicas, pools and gateways: what a pod may be called, and a little more."""

Name = Annotated[str, fastapi.Path(pattern=PART_NAME)]


@router.get("/pools", summary="List pools")
def list_pools(
    request: fastapi.Request, current: Current, limit: paging.Limit = paging.DEFAULT_LIMIT, cursor: paging.Cursor = None
) -> paging.Page[schemas.Pool]:
    snapshot = current.snapshot
    names = [name for name in sorted(snapshot.assignments) if cursor is None or name > cursor]

    def shape(name: str) -> schemas.Pool:
        assignment = snapshot.assignment(name)
        return schemas.Pool(
            pool=name,
            generation=assignment.generation,
            versions=[version.ref for version in assignment.versions],
            replicas=[replica.report.replica for replica in snapshot.facts.serving_replicas(name)],
        )

    return paging.page(request, names[: limit + 1], limit=limit, shape=shape, key=lambda name: name)


@router.get("/pools/{pool}/assignment", summary="What a pool's replicas must hold")
async def get_assignment(
    pool: Name,
    current: Current,
    generation: Annotated[int | None, fastapi.Query(description="the one that the agent has: wait for another")] = None,
    wait_s: Wait = 0,
) -> wire.Assignment:
    """Always the newest assignment: after the wait it may be the one that the agent has."""
    if generation is not None:
        await current.board.wait_for(
            lambda snapshot: snapshot.assignment(pool).generation != generation or None,
            timeout_s=current.wait_s(wait_s),
        )
    return current.snapshot.assignment(pool)


@router.put("/replicas/{replica}", summary="A replica's report")
def report_replica(replica: Name, body: wire.ReplicaReport, current: Current) -> wire.ReportAck:
    if body.replica != replica:
        raise errors.Invalid(
            f"the report is of replica {body.replica}, the path names {replica}; they have to be the same",
            kind="replica-mismatch",
        )
    current.record(lambda session: reports.record_replica(session, body, now=current.clock()))
    return current.snapshot.acknowledge(body)


@router.get("/replicas", summary="List replicas")
def list_replicas(
    request: fastapi.Request,
    current: Current,
    pool: str | None = None,
    limit: paging.Limit = paging.DEFAULT_LIMIT,
    cursor: paging.Cursor = None,
) -> paging.Page[schemas.Replica]:
    world = current.snapshot.facts
    with current.database.read() as session:
        found = [reports.replica(row) for row in reports.replicas(session, pool=pool, after=cursor, limit=limit + 1)]
    return paging.page(
        request,
        found,
        limit=limit,
        shape=lambda replica: schemas.Replica.of(replica, live=world.is_live(replica.last_seen)),
        key=lambda replica: replica.report.replica,
    )
