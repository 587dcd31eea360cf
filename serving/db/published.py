"""What the control plane tells pools and gateways: assignments by generation, configurations by revision."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.orm import Session

from serving.db import tables
from serving.domain import wire

KEPT_CONFIGS = 200
"""Older configurations are dropped, unless a gateway still reports one."""


def pools(session: Session) -> list[tables.Pool]:
    return list(session.scalars(sa.select(tables.Pool).order_by(tables.Pool.name)))


def save_assignment(session: Session, pool: str, refs: Sequence[wire.VersionRef], *, now: datetime) -> int:
    """Store what the pool is to hold; returns its generation, larger if that is news. Call under ``exclusive``.

    Generations are at least the seconds since 1970: after a database was restored or made anew, none is ever given
    twice, and agents notice that theirs is of another life.
    """
    fresh = int(now.timestamp())
    wanted = [[ref.model, ref.version] for ref in refs]
    row = session.get(tables.Pool, pool)
    if row is None:
        row = tables.Pool(name=pool, generation=fresh, versions=wanted, changed_at=now)
        session.add(row)
    elif row.versions != wanted:
        row.generation, row.versions, row.changed_at = max(row.generation + 1, fresh), wanted, now
    return row.generation


def refs_of(pool: tables.Pool) -> list[wire.VersionRef]:
    return [wire.VersionRef(model=model, version=version) for model, version in pool.versions]


def save_config(session: Session, config: wire.GatewayConfig, *, now: datetime) -> bool:
    """Make ``config`` the newest, and say whether it was another. Call under ``exclusive``.

    A configuration that was in force before comes back to the top.
    """
    query = sa.select(tables.GatewayConfig.revision, tables.GatewayConfig.sequence)
    newest = session.execute(query.order_by(tables.GatewayConfig.sequence.desc()).limit(1)).first()
    if newest is not None and newest.revision == config.revision:
        return False
    sequence = 1 if newest is None else newest.sequence + 1
    row = session.get(tables.GatewayConfig, config.revision)
    if row is not None:
        row.sequence = sequence
        return True
    body = config.model_dump(mode="json")
    session.add(tables.GatewayConfig(revision=config.revision, sequence=sequence, body=body, created_at=now))
    return True


def config_bodies(session: Session, revisions: Iterable[str]) -> dict[str, wire.GatewayConfig]:
    """The configurations of those revisions that are still known."""
    wanted = list(revisions)
    if not wanted:
        return {}
    rows = session.scalars(sa.select(tables.GatewayConfig).where(tables.GatewayConfig.revision.in_(wanted)))
    return {row.revision: wire.GatewayConfig.model_validate(row.body) for row in rows}


def prune_configs(session: Session, *, keep: Iterable[str]) -> None:
    newest = session.scalar(sa.select(sa.func.max(tables.GatewayConfig.sequence))) or 0
    session.execute(
        sa.delete(tables.GatewayConfig).where(
            tables.GatewayConfig.sequence <= newest - KEPT_CONFIGS, tables.GatewayConfig.revision.not_in(list(keep))
        )
    )
