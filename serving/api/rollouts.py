"""Promotions, rollbacks, and the rollouts that they become."""

from __future__ import annotations

import time
from typing import Annotated

import anyio.to_thread
import fastapi
from starlette.responses import Response

from serving.api import idempotency, paging, schemas
from serving.api.context import Actor, Context, Current, IdempotencyKey, Wait
from serving.db import stages as stored
from serving.domain import rollouts, stages
from serving.rollout import promotions

router = fastapi.APIRouter(prefix="/v1", tags=["rollouts"], route_class=idempotency.Route)

FALLBACK_POLL_S = 1.0
"""A waiting request looks again this often, for the steps that another control plane took."""


@router.post("/models/{model}/promotions", status_code=202, summary="Move a stage to a version")
def promote(
    model: str,
    body: schemas.NewPromotion,
    request: fastapi.Request,
    response: Response,
    current: Current,
    actor: Actor,
    key: IdempotencyKey,
) -> schemas.Rollout:
    """202 with the rollout; the same one while it is under way. 200 with the finished one when the version is stable
    already."""
    asked = _request(model, body.to, body.reason, request, actor, key)
    rollout = promotions.promote(
        current.database, asked, version=body.version, strategy=body.strategy, now=current.clock()
    )
    return _accepted(rollout, response, current)


@router.post("/models/{model}/rollback", status_code=202, summary="Move a stage back to its last good version")
def roll_back(
    model: str,
    body: schemas.NewRollback,
    request: fastapi.Request,
    response: Response,
    current: Current,
    actor: Actor,
    key: IdempotencyKey,
) -> schemas.Rollout:
    asked = _request(model, body.stage, body.reason, request, actor, key)
    rollout = promotions.roll_back(current.database, asked, now=current.clock())
    return _accepted(rollout, response, current)


@router.get("/rollouts", summary="List rollouts, newest first")
def list_rollouts(
    request: fastapi.Request,
    current: Current,
    model: str | None = None,
    stage: stages.Name | None = None,
    state: Annotated[list[rollouts.State] | None, fastapi.Query(description="repeat for several")] = None,
    limit: paging.Limit = paging.DEFAULT_LIMIT,
    cursor: paging.Cursor = None,
) -> paging.Page[schemas.Rollout]:
    with current.database.read() as session:
        rows = stored.page(session, before=cursor, limit=limit + 1, model=model, name=stage, states=state or [])
    return paging.page(request, rows, limit=limit, shape=schemas.Rollout.of, key=lambda rollout: rollout.id)


@router.get("/rollouts/{rollout}", summary="One rollout; with wait_s: once its state is another, or it has ended")
async def get_rollout(
    rollout: str,
    current: Current,
    wait_s: Wait = 0,
    state: Annotated[
        rollouts.State | None, fastapi.Query(description="the state that the client knows; default: the present one")
    ] = None,
) -> schemas.Rollout:
    deadline = time.monotonic() + current.wait_s(wait_s)
    known = state
    while True:
        news = current.board.next_news()
        found = await anyio.to_thread.run_sync(_read, current, rollout)
        known = known or found.state
        remaining = deadline - time.monotonic()
        if found.state is not known or found.state.is_terminal or remaining <= 0 or current.board.is_closed:
            return schemas.Rollout.of(found)
        await news.wait(timeout_s=min(remaining, FALLBACK_POLL_S))


@router.post("/rollouts/{rollout}:abort", summary="Stop a rollout and restore its stage")
def abort(
    rollout: str, current: Current, actor: Actor, _key: IdempotencyKey, body: schemas.NewAbort | None = None
) -> schemas.Rollout:
    reason = body.reason if body else ""
    ended = promotions.abort(current.database, rollout, actor=actor, reason=reason, now=current.clock())
    current.controller.wake()
    return schemas.Rollout.of(ended)


def _request(
    model: str, stage: stages.Name, reason: str, request: fastapi.Request, actor: str, key: str | None
) -> promotions.Request:
    return promotions.Request(
        model=model,
        stage=stage,
        actor=actor,
        reason=reason,
        key=idempotency.request_key(request.url.path, key),
    )


def _accepted(rollout: rollouts.Rollout, response: Response, current: Context) -> schemas.Rollout:
    current.controller.wake()
    response.headers["location"] = f"/v1/rollouts/{rollout.id}"
    if rollout.state.is_terminal:
        response.status_code = 200
    return schemas.Rollout.of(rollout)


def _read(current: Context, identifier: str) -> rollouts.Rollout:
    with current.database.read() as session:
        return stored.rollout(session, identifier)
