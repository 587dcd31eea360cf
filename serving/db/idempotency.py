"""Answers kept under an ``Idempotency-Key``, so that a client that lost one may ask again."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from serving.db import tables
from serving.domain import errors

RETENTION = timedelta(hours=24)
CLAIM_TIMEOUT = timedelta(seconds=60)
"""A request that was begun this long ago and has no answer died with its process: it may be begun again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: str


def claim(session: Session, *, key: str, path: str, fingerprint: str, now: datetime) -> Answer | None:
    """Begin a request, or find the answer that was given to it. Call under ``exclusive``.

    Raises:
        errors.Invalid: the key was used for another request.
        errors.Conflict: the same request is being worked on at this moment.
    """
    row = session.get(tables.IdempotentRequest, (key, path))
    if row is None:
        session.add(tables.IdempotentRequest(key=key, path=path, fingerprint=fingerprint, created_at=now))
        return None
    if row.fingerprint != fingerprint:
        raise errors.Invalid(
            f"Idempotency-Key {key} was used for a request with another body; take a new key for a new request",
            kind="idempotency-key-reused",
        )
    if row.status is None:
        if now - row.created_at < CLAIM_TIMEOUT:
            raise errors.Conflict(
                f"the request with Idempotency-Key {key} is still being worked on; ask again in a second",
                kind="idempotency-in-progress",
            )
        row.created_at = now
        return None
    headers: dict[str, Any] = row.headers or {}
    return Answer(status=row.status, headers=headers, body=row.body or "")


def settle(session: Session, *, key: str, path: str, answer: Answer) -> None:
    """Keep the answer for repeats."""
    row = session.get(tables.IdempotentRequest, (key, path))
    if row is not None:
        row.status, row.headers, row.body = answer.status, dict(answer.headers), answer.body


def release(session: Session, *, key: str, path: str) -> None:
    """Forget a request that came to no lasting answer."""
    session.execute(
        sa.delete(tables.IdempotentRequest).where(
            tables.IdempotentRequest.key == key,
            tables.IdempotentRequest.path == path,
            tables.IdempotentRequest.status.is_(None),
        )
    )


def prune(session: Session, *, now: datetime) -> None:
    session.execute(sa.delete(tables.IdempotentRequest).where(tables.IdempotentRequest.created_at < now - RETENTION))
