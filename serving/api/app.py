"""Puts the control plane together: one FastAPI application with its controller task."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable
from datetime import datetime
from typing import Any

import fastapi

from serving.api import (
    bodies,
    context,
    events,
    gateways,
    health,
    metrics,
    models,
    problems,
    replicas,
    rollouts,
    schemas,
)
from serving.api import settings as configuration
from serving.db import engine, errors, migrate, signals
from serving.rollout import board, controller, reconciler

DATABASE_RETRY_S = 1.0
"""Pause between tries to reach a database that was not there at start."""

_log = logging.getLogger(__name__)

_PROBLEM: dict[int | str, dict[str, Any]] = {
    code: {"description": text, "model": schemas.Problem, "content": {problems.MEDIA_TYPE: {}}}
    for code, text in {
        404: "no such thing",
        409: "not possible in the present state",
        413: "the body is too large",
        422: "the request is not valid",
        503: "the database or the model store does not answer; see Retry-After",
    }.items()
}


def create(
    settings: configuration.Settings,
    *,
    archives: context.Archives | None = None,
    clock: Callable[[], datetime] = reconciler.utc_now,
) -> fastapi.FastAPI:
    """The control plane as an ASGI application; its work begins with its lifespan.

    Args:
        archives: where archives of new versions have to be; ``None`` leaves that unchecked.
        clock: what it takes for the present moment.
    """
    app = fastapi.FastAPI(
        title="Slipway control plane",
        version=metrics.release(),
        description="Models, versions, stages and rollouts. Errors are RFC 9457 problem documents; lists are paged; "
        "every POST takes an Idempotency-Key.",
        lifespan=_lifespan,
        responses=_PROBLEM,
    )
    measured = metrics.Metrics()
    app.state.context = _context(settings, archives, clock, measured)
    for part in (models, rollouts, replicas, gateways, events, health):
        app.include_router(part.router)
    problems.install(app)
    app.add_middleware(bodies.Middleware, limit_bytes=settings.max_body_bytes)
    app.add_middleware(metrics.Middleware, metrics=measured)
    return app


def _context(
    settings: configuration.Settings,
    archives: context.Archives | None,
    clock: Callable[[], datetime],
    measured: metrics.Metrics,
) -> context.Context:
    database = engine.Database(settings.database_url)
    published = board.Board()
    return context.Context(
        settings=settings,
        archives=archives,
        board=published,
        controller=controller.Controller(
            reconciler=reconciler.Reconciler(database=database, limits=settings.limits, clock=clock),
            board=published,
            observe=measured.observe_reconciliation,
        ),
        metrics=measured,
        opened=database,
        clock=clock,
    )


@contextlib.asynccontextmanager
async def _lifespan(app: fastapi.FastAPI) -> AsyncGenerator[None]:
    current: context.Context = app.state.context
    # A schema that is too new fails the start; a database that is away is waited for while /healthz already answers.
    with contextlib.suppress(errors.DatabaseUnavailable):
        await _migrate(current)
        await current.controller.reconcile()
    listener = signals.Listener(database=current.opened, on_news=current.controller.wake)
    listener.start()
    work = asyncio.create_task(_work(current), name="controller")
    try:
        yield
    finally:
        current.board.close()
        work.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await work
        await asyncio.to_thread(listener.stop)
        current.opened.close()


async def _work(current: context.Context) -> None:
    while not current.is_migrated:
        try:
            await _migrate(current)
        except errors.DatabaseUnavailable as error:
            _log.warning("waiting for the database", extra={"error": error.detail})
            await asyncio.sleep(DATABASE_RETRY_S)
    await current.controller.run()


async def _migrate(current: context.Context) -> None:
    await asyncio.to_thread(migrate.upgrade, current.opened)
    current.is_migrated = True
