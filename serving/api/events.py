"""``/v1/events``: the audit trail."""

from __future__ import annotations

import fastapi

from serving.api import paging, schemas
from serving.api.context import Current
from serving.db import events

router = fastapi.APIRouter(prefix="/v1", tags=["events"])


@router.get("/events", summary="Who changed what, and why; newest first")
def list_events(
    request: fastapi.Request,
    current: Current,
    model: str | None = None,
    rollout: str | None = None,
    limit: paging.Limit = paging.DEFAULT_LIMIT,
    cursor: paging.Cursor = None,
) -> paging.Page[schemas.Event]:
    with current.database.read() as session:
        rows = events.page(session, before=paging.number(cursor), limit=limit + 1, model=model, rollout=rollout)
    return paging.page(request, rows, limit=limit, shape=schemas.Event.of, key=lambda row: row.id)
