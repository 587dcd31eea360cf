"""What a person may ask of rollouts: promote, roll back, abort. Each is one transaction, with its event."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy.orm import Session

from serving.db import engine, events, idempotency, registry, stages
from serving.domain import errors, ids, rollouts, strategies
from serving.domain import stages as rules
from serving.rollout import reconciler


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Who asks for a rollout into a stage, and why."""

    model: str
    stage: rules.Name
    actor: str
    reason: str
    key: str | None = None
    """``Idempotency-Key`` of the request, made unique for the path it was sent to."""


def promote(
    database: engine.Database, request: Request, *, version: int, strategy: strategies.Strategy, now: datetime
) -> rollouts.Rollout:
    """Start moving a stage to a version.

    Asking again while that rollout is under way gives the same one; asking for what is already stable gives the
    rollout that made it so.

    Raises:
        errors.NotFound: no such model or version.
        errors.Conflict: another rollout into the stage is under way.
    """
    with database.exclusive() as session:
        registry.version(session, request.model, version)
        if (known := _known(session, request, rollouts.Kind.PROMOTION, version, now)) is not None:
            return known
        running = _running(session, request)
        if running is not None:
            if running.to_version == version:
                return running
            raise _conflict(running)
        stage = stages.stage(session, request.model, request.stage)
        if stage.stable == version:
            done = stages.latest_done(session, request.model, request.stage, version)
            if done is not None:
                return done
        return _start(session, request, rollouts.Kind.PROMOTION, stage, version, strategy, now)


def roll_back(database: engine.Database, request: Request, *, now: datetime) -> rollouts.Rollout:
    """Start moving a stage back to the version that was stable before the present one.

    Raises:
        errors.NotFound: no such model.
        errors.Conflict: there is no earlier version, or a promotion into the stage is under way.
    """
    with database.exclusive() as session:
        registry.model(session, request.model)
        if (known := _known(session, request, rollouts.Kind.ROLLBACK, None, now)) is not None:
            return known
        running = _running(session, request)
        if running is not None:
            if running.kind is rollouts.Kind.ROLLBACK:
                return running
            raise _conflict(running)
        stage = stages.stage(session, request.model, request.stage)
        if stage.last_good is None:
            raise errors.Conflict(
                f"{request.model} has no earlier version in {request.stage} to roll back to; "
                "promote the version that you want instead",
                kind="nothing-to-roll-back-to",
            )
        strategy = strategies.Strategy.ALL_AT_ONCE
        return _start(session, request, rollouts.Kind.ROLLBACK, stage, stage.last_good, strategy, now)


def abort(database: engine.Database, identifier: str, *, actor: str, reason: str, now: datetime) -> rollouts.Rollout:
    """Stop a rollout and restore its stage.

    Raises:
        errors.NotFound: no such rollout.
        errors.Conflict: it has ended.
    """
    with database.exclusive() as session:
        rollout = stages.rollout(session, identifier)
        stage = stages.stage(session, rollout.model, rollout.stage)
        step = rollouts.abort(rollout, stage=stage, now=now, actor=actor, reason=reason)
        reconciler.record(session, rollout, stage, step, actor=actor, now=now)
        return step.rollout


def _known(
    session: Session, request: Request, kind: rollouts.Kind, version: int | None, now: datetime
) -> rollouts.Rollout | None:
    """The rollout that an earlier request with the same key started."""
    if request.key is None:
        return None
    known = stages.rollout_of_request(session, request.key, since=now - idempotency.RETENTION)
    if known is None:
        return None
    if (known.kind, known.stage) != (kind, request.stage) or version not in (None, known.to_version):
        raise errors.Invalid(
            f"the Idempotency-Key was used for rollout {known.id}, which is another request; take a new key",
            kind="idempotency-key-reused",
            rollout=known.id,
        )
    return known


def _running(session: Session, request: Request) -> rollouts.Rollout | None:
    return next(iter(stages.active(session, request.model, request.stage)), None)


def _conflict(running: rollouts.Rollout) -> errors.Conflict:
    return errors.Conflict(
        f"rollout {running.id} is moving {running.model} in {running.stage} to version {running.to_version} "
        f"({running.state}); wait for it, or abort it first",
        kind="rollout-in-progress",
        rollout=running.id,
        state=running.state,
    )


def _start(
    session: Session,
    request: Request,
    kind: rollouts.Kind,
    stage: rules.Stage,
    version: int,
    strategy: strategies.Strategy,
    now: datetime,
) -> rollouts.Rollout:
    rollout = rollouts.Rollout(
        id=ids.rollout_id(now),
        model=request.model,
        stage=request.stage,
        kind=kind,
        strategy=strategy,
        from_version=stage.stable,
        to_version=version,
        state=rollouts.State.PENDING,
        state_since=now,
        actor=request.actor,
        reason=request.reason,
        created_at=now,
        before=stage,
        progress={"message": "waits for the controller"},
    )
    stages.add_rollout(session, rollout, request_key=request.key)
    events.append(
        session,
        at=now,
        actor=request.actor,
        action=f"{kind}.requested",
        reason=request.reason,
        model=request.model,
        stage=request.stage,
        version=version,
        rollout=rollout.id,
        evidence={"from_version": stage.stable, "to_version": version, "strategy": strategy},
    )
    return rollout
