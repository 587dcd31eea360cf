"""The audit trail: who did what, why, and on what evidence. Rows are only ever added."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from serving.db import tables

CONTROLLER = "slipway"
"""The actor of steps that no person asked for."""


def append(
    session: Session,
    *,
    at: datetime,
    actor: str,
    action: str,
    reason: str = "",
    model: str | None = None,
    stage: str | None = None,
    version: int | None = None,
    rollout: str | None = None,
    evidence: dict[str, Any] | None = None,
) -> None:
    """Record a change, in the transaction that makes it."""
    session.add(
        tables.Event(
            at=at,
            actor=actor,
            action=action,
            reason=reason,
            model=model,
            stage=stage,
            version=version,
            rollout=rollout,
            evidence=evidence or {},
        )
    )


def page(
    session: Session, *, before: int | None, limit: int, model: str | None = None, rollout: str | None = None
) -> list[tables.Event]:
    """Up to ``limit`` events older than the one with id ``before``, newest first."""
    query = sa.select(tables.Event).order_by(tables.Event.id.desc()).limit(limit)
    if before is not None:
        query = query.where(tables.Event.id < before)
    if model is not None:
        query = query.where(tables.Event.model == model)
    if rollout is not None:
        query = query.where(tables.Event.rollout == rollout)
    return list(session.scalars(query))
