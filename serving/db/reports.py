"""What replicas and gateways last said about themselves, and when."""

from __future__ import annotations

import hashlib
import json
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from serving.db import tables
from serving.domain import facts, wire

_FIGURES = frozenset({"memory_bytes", "workers", "threads", "pid", "restarts", "since"})


def record_replica(session: Session, report: wire.ReplicaReport, *, now: datetime) -> bool:
    """Note a report; true when it says something that may change a decision, false for a heartbeat or new figures.

    The common case, a report that is the same as the last one, costs one UPDATE.
    """
    body = report.model_dump(mode="json")
    fingerprint = _fingerprint(body)
    if _touch(session, tables.Replica, report.replica, fingerprint, now):
        return False
    row = session.get(tables.Replica, report.replica, with_for_update=True)
    if row is None:
        row = tables.Replica(name=report.replica)
        session.add(row)
        is_news = True
    else:
        is_news = _decisive(row.report) != _decisive(body)
    row.pool, row.report, row.fingerprint, row.last_seen = report.pool, body, fingerprint, now
    return is_news


def record_gateway(session: Session, report: wire.GatewayReport, *, now: datetime) -> bool:
    """Note a report; true when it is another one than the last."""
    body = report.model_dump(mode="json")
    fingerprint = _fingerprint(body)
    if _touch(session, tables.Gateway, report.gateway, fingerprint, now):
        return False
    row = session.get(tables.Gateway, report.gateway)
    if row is None:
        row = tables.Gateway(name=report.gateway)
        session.add(row)
    row.report, row.fingerprint, row.last_seen = body, fingerprint, now
    return True


def _touch(
    session: Session, table: type[tables.Replica | tables.Gateway], name: str, fingerprint: str, now: datetime
) -> bool:
    statement = (
        sa.update(table)
        .where(table.name == name, table.fingerprint == fingerprint)
        .values(last_seen=now)
        .returning(table.name)
        .execution_options(synchronize_session=False)
    )
    return session.execute(statement).first() is not None


def _fingerprint(body: dict[str, Any]) -> str:
    """Of all but ``since``, which agents work out from a clock that trembles; it changes with the state only."""
    servers = [{**server, "since": None} for server in body.get("servers", [])]
    body = {**body, "servers": servers}
    return hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _decisive(body: dict[str, Any]) -> dict[str, Any]:
    """The report without the figures that no rule looks at."""
    servers = [{key: value for key, value in server.items() if key not in _FIGURES} for server in body["servers"]]
    return {**body, "memory_bytes": 0, "servers": servers}


def replicas(
    session: Session, *, pool: str | None = None, after: str | None = None, limit: int | None = None
) -> list[tables.Replica]:
    """Replicas by name."""
    query = sa.select(tables.Replica).order_by(tables.Replica.name).limit(limit)
    if pool is not None:
        query = query.where(tables.Replica.pool == pool)
    if after is not None:
        query = query.where(tables.Replica.name > after)
    return list(session.scalars(query))


def gateways(session: Session, *, after: str | None = None, limit: int | None = None) -> list[tables.Gateway]:
    """Gateways by name."""
    query = sa.select(tables.Gateway).order_by(tables.Gateway.name).limit(limit)
    if after is not None:
        query = query.where(tables.Gateway.name > after)
    return list(session.scalars(query))


def forget_silent(session: Session, *, replicas_before: datetime, gateways_before: datetime) -> None:
    """Drop those not heard of since; a pool's last replicas stay, because their addresses are all that there is."""
    latest = (
        sa.select(tables.Replica.pool)
        .group_by(tables.Replica.pool)
        .having(sa.func.max(tables.Replica.last_seen) >= replicas_before)
    )
    session.execute(
        sa.delete(tables.Replica).where(
            tables.Replica.last_seen < replicas_before, tables.Replica.pool.in_(latest.scalar_subquery())
        )
    )
    session.execute(sa.delete(tables.Gateway).where(tables.Gateway.last_seen < gateways_before))


def replica(row: tables.Replica) -> facts.Replica:
    return facts.Replica(report=wire.ReplicaReport.model_validate(row.report), last_seen=row.last_seen)
