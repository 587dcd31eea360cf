"""What the views work with, and how they get hold of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Protocol

import fastapi
from sqlalchemy import exc
from sqlalchemy.orm import Session

from serving.api import metrics, settings
from serving.db import engine, errors
from serving.rollout import board, controller, reconciler

ANONYMOUS = "anonymous"


class Archives(Protocol):
    """The part of ``model_store.store.Store`` that the control plane needs."""

    def head(self, digest: str) -> int | None: ...


@dataclass(slots=True, kw_only=True)
class Context:
    """One control plane."""

    settings: settings.Settings
    archives: Archives | None
    board: board.Board
    controller: controller.Controller
    metrics: metrics.Metrics
    opened: engine.Database
    clock: Callable[[], datetime] = reconciler.utc_now
    is_migrated: bool = False

    @property
    def database(self) -> engine.Database:
        """Raises errors.DatabaseUnavailable until the migrations have run."""
        if not self.is_migrated:
            raise errors.DatabaseUnavailable("the database has not answered since the control plane started")
        return self.opened

    @property
    def snapshot(self) -> board.Snapshot:
        """Raises errors.DatabaseUnavailable until the first reconciliation."""
        if self.board.snapshot is None:
            raise errors.DatabaseUnavailable("the control plane has not read its database yet", retry_after_s=1)
        return self.board.snapshot

    def record(self, save: Callable[[Session], bool]) -> None:
        """Store a report, and reconcile if it is news."""
        try:
            with self.database.write() as session:
                is_news = save(session)
        except exc.IntegrityError:
            # Two first reports of one sender met (a retry overtook); by now its row is there.
            with self.database.write() as session:
                is_news = save(session)
        if is_news:
            self.controller.wake()

    def wait_s(self, asked: float) -> float:
        return min(asked, self.settings.max_wait_s)


def _context(request: fastapi.Request) -> Context:
    return request.app.state.context


def _actor(
    slipway_actor: Annotated[
        str | None,
        fastapi.Header(max_length=200, pattern=r"^[ -~]+$", description="who asks: kept with every change"),
    ] = None,
) -> str:
    return slipway_actor or ANONYMOUS


def _key(
    idempotency_key: Annotated[
        str | None,
        fastapi.Header(
            min_length=1,
            max_length=200,
            pattern=r"^[!-~]+$",
            description="a repeat with the same key is answered alike",
        ),
    ] = None,
) -> str | None:
    return idempotency_key


Current = Annotated[Context, fastapi.Depends(_context)]
Actor = Annotated[str, fastapi.Depends(_actor)]
IdempotencyKey = Annotated[str | None, fastapi.Depends(_key)]
Wait = Annotated[
    float, fastapi.Query(ge=0, allow_inf_nan=False, description="seconds to wait for news; 0 answers at once")
]
