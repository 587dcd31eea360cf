"""Stages and rollouts, between their rows and the values that the rules work on."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from serving.db import tables
from serving.domain import errors, facts, rollouts, stages, strategies

_ACTIVE = [state.value for state in rollouts.ACTIVE]


def stage(session: Session, model: str, name: stages.Name) -> stages.Stage:
    """The stage; an empty one when nothing was ever promoted into it."""
    row = session.get(tables.Stage, (model, name.value))
    return stages.Stage(model=model, name=name) if row is None else _stage(row)


def all_stages(session: Session) -> tuple[stages.Stage, ...]:
    query = sa.select(tables.Stage).order_by(tables.Stage.model, tables.Stage.name)
    return tuple(_stage(row) for row in session.scalars(query))


def stages_of(session: Session, models: Sequence[str]) -> dict[str, list[stages.Stage]]:
    """Both stages of each model, production first."""
    rows = session.scalars(sa.select(tables.Stage).where(tables.Stage.model.in_(models)))
    known = {(row.model, row.name): _stage(row) for row in rows}
    return {
        model: [known.get((model, name.value), stages.Stage(model=model, name=name)) for name in stages.Name]
        for model in models
    }


def save_stage(session: Session, value: stages.Stage) -> None:
    """Call under ``exclusive``."""
    row = session.get(tables.Stage, (value.model, value.name.value))
    if row is None:
        row = tables.Stage(model=value.model, name=value.name.value)
        session.add(row)
    row.stable, row.candidate = value.stable, value.candidate
    row.history, row.replaced_at = list(value.history), value.replaced_at


def add_rollout(session: Session, value: rollouts.Rollout, *, request_key: str | None) -> None:
    row = tables.Rollout(
        id=value.id,
        model=value.model,
        stage=value.stage.value,
        kind=value.kind.value,
        strategy=value.strategy.value,
        from_version=value.from_version,
        to_version=value.to_version,
        actor=value.actor,
        reason=value.reason,
        created_at=value.created_at,
        request_key=request_key,
    )
    _fill(row, value)
    session.add(row)
    session.flush()


def save_rollout(session: Session, value: rollouts.Rollout) -> None:
    """Call under ``exclusive``."""
    row = session.get(tables.Rollout, value.id)
    assert row is not None, value.id
    _fill(row, value)


def rollout(session: Session, identifier: str) -> rollouts.Rollout:
    """Raises errors.NotFound."""
    row = session.get(tables.Rollout, identifier)
    if row is None:
        raise errors.NotFound(
            f'there is no rollout "{identifier}"; "slipway rollouts" lists the latest', kind="rollout-not-found"
        )
    return _rollout(row)


def rollout_of_request(session: Session, request_key: str, *, since: datetime) -> rollouts.Rollout | None:
    """The rollout that was started under a key, which is free again for those older than ``since``."""
    row = session.scalars(sa.select(tables.Rollout).where(tables.Rollout.request_key == request_key)).one_or_none()
    if row is None:
        return None
    if row.created_at < since:
        row.request_key = None
        session.flush()
        return None
    return _rollout(row)


def active(session: Session, model: str | None = None, name: stages.Name | None = None) -> list[rollouts.Rollout]:
    """Rollouts that have not ended, oldest first."""
    query = sa.select(tables.Rollout).where(tables.Rollout.state.in_(_ACTIVE)).order_by(tables.Rollout.id)
    if model is not None:
        query = query.where(tables.Rollout.model == model)
    if name is not None:
        query = query.where(tables.Rollout.stage == name.value)
    return [_rollout(row) for row in session.scalars(query)]


def latest_done(session: Session, model: str, name: stages.Name, version: int) -> rollouts.Rollout | None:
    """The rollout that made ``version`` stable."""
    query = (
        sa.select(tables.Rollout)
        .where(
            tables.Rollout.model == model,
            tables.Rollout.stage == name.value,
            tables.Rollout.to_version == version,
            tables.Rollout.state == rollouts.State.DONE.value,
        )
        .order_by(tables.Rollout.id.desc())
        .limit(1)
    )
    row = session.scalars(query).one_or_none()
    return None if row is None else _rollout(row)


def replaced_since(session: Session, moment: datetime) -> list[facts.Replaced]:
    """What rollouts have taken out of a stage since then."""
    query = sa.select(tables.Rollout.model, tables.Rollout.from_version, tables.Rollout.shifted_at).where(
        tables.Rollout.shifted_at >= moment,
        tables.Rollout.from_version.is_not(None),
        tables.Rollout.state.in_([rollouts.State.SHIFTING.value, rollouts.State.DONE.value]),
    )
    return [
        facts.Replaced(model=model, version=version, at=at)
        for model, version, at in session.execute(query)
        if version is not None and at is not None
    ]


def page(
    session: Session,
    *,
    before: str | None,
    limit: int,
    model: str | None = None,
    name: str | None = None,
    states: Sequence[str] = (),
) -> list[rollouts.Rollout]:
    """Up to ``limit`` rollouts, newest first."""
    query = sa.select(tables.Rollout).order_by(tables.Rollout.id.desc()).limit(limit)
    if before is not None:
        query = query.where(tables.Rollout.id < before)
    if model is not None:
        query = query.where(tables.Rollout.model == model)
    if name is not None:
        query = query.where(tables.Rollout.stage == name)
    if states:
        query = query.where(tables.Rollout.state.in_(states))
    return [_rollout(row) for row in session.scalars(query)]


def count_by_state(session: Session) -> dict[str, int]:
    rows = session.execute(sa.select(tables.Rollout.state, sa.func.count()).group_by(tables.Rollout.state))
    return {row[0]: row[1] for row in rows}


def _stage(row: tables.Stage) -> stages.Stage:
    return stages.Stage(
        model=row.model,
        name=stages.Name(row.name),
        stable=row.stable,
        candidate=row.candidate,
        history=tuple(row.history),
        replaced_at=row.replaced_at,
    )


def _fill(row: tables.Rollout, value: rollouts.Rollout) -> None:
    row.state, row.state_since = value.state.value, value.state_since
    row.shifted_at, row.routed_at = value.shifted_at, value.routed_at
    row.before = _dump_stage(value.before)
    row.progress, row.error = value.progress, value.error and value.error.replace("\0", "")


def _rollout(row: tables.Rollout) -> rollouts.Rollout:
    name = stages.Name(row.stage)
    return rollouts.Rollout(
        id=row.id,
        model=row.model,
        stage=name,
        kind=rollouts.Kind(row.kind),
        strategy=strategies.Strategy(row.strategy),
        from_version=row.from_version,
        to_version=row.to_version,
        state=rollouts.State(row.state),
        state_since=row.state_since,
        actor=row.actor,
        reason=row.reason,
        created_at=row.created_at,
        before=_load_stage(row.model, name, row.before),
        shifted_at=row.shifted_at,
        routed_at=row.routed_at,
        progress=row.progress,
        error=row.error,
    )


def _dump_stage(value: stages.Stage) -> dict[str, Any]:
    return {
        "stable": value.stable,
        "history": list(value.history),
        "replaced_at": value.replaced_at.isoformat() if value.replaced_at else None,
    }


def _load_stage(model: str, name: stages.Name, body: dict[str, Any]) -> stages.Stage:
    at = body["replaced_at"]
    return stages.Stage(
        model=model,
        name=name,
        stable=body["stable"],
        history=tuple(body["history"]),
        replaced_at=datetime.fromisoformat(at) if at else None,
    )
