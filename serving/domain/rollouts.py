"""The life of a rollout: pending → loading → shifting → done | failed | rolled_back.

:func:`advance` is the one door: facts come in, the next step goes out, and nothing else ever moves a rollout (apart
from :func:`abort`, which is a person's step). It takes at most one step at a time and is level-triggered: called again
after a crash, or twice by two control planes, it comes to the same place.

What each state means for the stage:

========== ==========================================================================
pending    nothing yet
loading    the version is the stage's *candidate*: replicas load it, traffic stays
shifting   the version is *stable*: gateways take up the new weights, old requests end
done       every live gateway serves the new weights, the old version has no request
failed     traffic never moved; the stage is as it was before
rolled_back traffic moved and was moved back, or a person stopped the rollout
========== ==========================================================================
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from serving.domain import errors, readiness, stages, strategies

if TYPE_CHECKING:
    from serving.domain.facts import Facts


class State(StrEnum):
    PENDING = "pending"
    LOADING = "loading"
    SHIFTING = "shifting"
    DONE = "done"
    FAILED = "failed"
    ROLLED_BACK = "rolled_back"

    @property
    def is_terminal(self) -> bool:
        return self not in ACTIVE


ACTIVE = (State.PENDING, State.LOADING, State.SHIFTING)


class Kind(StrEnum):
    PROMOTION = "promotion"
    ROLLBACK = "rollback"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    id: str
    model: str
    stage: stages.Name
    kind: Kind
    strategy: strategies.Strategy
    from_version: int | None
    """What was stable when the rollout was asked for."""
    to_version: int
    state: State
    state_since: datetime
    actor: str
    reason: str
    created_at: datetime
    before: stages.Stage
    """The stage as it was before: what a way back restores."""
    shifted_at: datetime | None = None
    """When the stage's stable version changed."""
    routed_at: datetime | None = None
    """When every live gateway was first seen with the new weights."""
    progress: dict[str, Any] = field(default_factory=dict[str, Any])
    error: str | None = None
    """Why it failed or was rolled back, with the worker's own traceback where there is one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What an event says about a step."""

    action: str
    reason: str
    evidence: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The rollout and its stage as they are to be from now on; no change means: wait for other facts."""

    rollout: Rollout
    stage: stages.Stage
    change: Change | None = None


def advance(rollout: Rollout, *, stage: stages.Stage, facts: Facts) -> Step:
    """Decide a rollout's next step.

    Returns the same rollout when nothing is to be done, one with a new ``progress`` or ``routed_at`` when only that
    is news, and one in another state (with the event to record) when the facts ask for it.
    """
    match rollout.state:
        case State.PENDING:
            return _load(rollout, stage=stage, facts=facts)
        case State.LOADING:
            return _loading(rollout, stage=stage, facts=facts)
        case State.SHIFTING:
            return _shifting(rollout, stage=stage, facts=facts)
        case _:
            return Step(rollout=rollout, stage=stage)


def abort(rollout: Rollout, *, stage: stages.Stage, now: datetime, actor: str, reason: str) -> Step:
    """Stop a rollout because a person asked for it; traffic that moved is moved back.

    Raises:
        errors.Conflict: it has already ended.
    """
    if rollout.state.is_terminal:
        raise errors.Conflict(
            f"rollout {rollout.id} is already {rollout.state}; only a pending, loading or shifting one can be aborted",
            kind="rollout-ended",
            rollout=rollout.id,
            state=rollout.state,
        )
    why = f"aborted by {actor}" + (f": {reason}" if reason else "")
    return _end(rollout, State.ROLLED_BACK, stage=_restored(rollout, stage), now=now, why=why, evidence={})


def _load(rollout: Rollout, *, stage: stages.Stage, facts: Facts) -> Step:
    return _move(
        rollout,
        State.LOADING,
        stage=dataclasses.replace(stage, candidate=rollout.to_version),
        now=facts.now,
        why=f"replicas are to load version {rollout.to_version}",
    )


def _loading(rollout: Rollout, *, stage: stages.Stage, facts: Facts) -> Step:
    pool = readiness.of(rollout.model, rollout.to_version, facts=facts)
    if pool.failed:
        return _end(
            rollout,
            State.FAILED,
            stage=dataclasses.replace(stage, candidate=None),
            now=facts.now,
            why=f"version {rollout.to_version} of {rollout.model} does not load on {', '.join(sorted(pool.failed))}; "
            "the stage is unchanged",
            evidence=pool.evidence(),
            traceback=pool.first_error,
        )
    if pool.is_complete:
        return _shift(rollout, stage=stage, facts=facts, evidence=pool.evidence())
    if facts.elapsed_s(rollout.state_since) > facts.limits.loading_timeout_s:
        return _end(
            rollout,
            State.FAILED,
            stage=dataclasses.replace(stage, candidate=None),
            now=facts.now,
            why=f"not ready within {facts.limits.loading_timeout_s:g} s: {pool.summary}; the stage is unchanged",
            evidence=pool.evidence(),
        )
    return _hold(rollout, stage=stage, progress={"message": pool.summary, **pool.evidence()})


def _shift(rollout: Rollout, *, stage: stages.Stage, facts: Facts, evidence: dict[str, Any]) -> Step:
    become = stage.rolled_back if rollout.kind is Kind.ROLLBACK else stage.promoted
    shifting = dataclasses.replace(rollout, before=dataclasses.replace(stage, candidate=None), shifted_at=facts.now)
    return _move(
        shifting,
        State.SHIFTING,
        stage=become(rollout.to_version, at=facts.now),
        now=facts.now,
        why=f"version {rollout.to_version} is ready: traffic moves",
        evidence=evidence,
    )


def _shifting(rollout: Rollout, *, stage: stages.Stage, facts: Facts) -> Step:
    pool = readiness.of(rollout.model, rollout.to_version, facts=facts)
    if pool.failed and not pool.ready:
        return _end(
            rollout,
            State.ROLLED_BACK,
            stage=_restored(rollout, stage),
            now=facts.now,
            why=f"version {rollout.to_version} failed on every replica while traffic moved; traffic is moved back",
            evidence=pool.evidence(),
            traceback=pool.first_error,
        )
    uptake = readiness.uptake(rollout.model, rollout.stage, rollout.to_version, facts=facts)
    if not uptake.is_complete:
        if facts.elapsed_s(rollout.state_since) > facts.limits.shifting_timeout_s:
            return _end(
                rollout,
                State.ROLLED_BACK,
                stage=_restored(rollout, stage),
                now=facts.now,
                why=f"not routed within {facts.limits.shifting_timeout_s:g} s: {uptake.summary}; traffic is moved back",
                evidence=uptake.evidence(),
            )
        return _hold(rollout, stage=stage, progress={"message": uptake.summary, **uptake.evidence()})

    routed_at = rollout.routed_at or facts.now
    left = _in_flight(rollout, facts)
    if left and facts.elapsed_s(routed_at) <= facts.limits.in_flight_timeout_s:
        return _hold(
            dataclasses.replace(rollout, routed_at=routed_at),
            stage=stage,
            progress={"message": f"{left} requests still with version {rollout.from_version}", **uptake.evidence()},
        )
    return _end(
        dataclasses.replace(rollout, routed_at=routed_at),
        State.DONE,
        stage=stage,
        now=facts.now,
        why=f"every gateway sends {rollout.stage} traffic to version {rollout.to_version}",
        evidence={**uptake.evidence(), "requests_left_with_old_version": left},
    )


def _in_flight(rollout: Rollout, facts: Facts) -> int:
    if rollout.from_version is None or rollout.from_version == rollout.to_version:
        return 0
    return sum(gateway.active(model=rollout.model, version=rollout.from_version) for gateway in facts.live_gateways())


def _restored(rollout: Rollout, stage: stages.Stage) -> stages.Stage:
    if rollout.state is State.SHIFTING:
        return dataclasses.replace(rollout.before, candidate=None)
    return dataclasses.replace(stage, candidate=None)


def _hold(rollout: Rollout, *, stage: stages.Stage, progress: dict[str, Any]) -> Step:
    return Step(rollout=dataclasses.replace(rollout, progress=progress), stage=stage)


def _move(
    rollout: Rollout,
    state: State,
    *,
    stage: stages.Stage,
    now: datetime,
    why: str,
    evidence: dict[str, Any] | None = None,
) -> Step:
    moved = dataclasses.replace(rollout, state=state, state_since=now, progress={"message": why, **(evidence or {})})
    change = Change(action=f"rollout.{state}", reason=why, evidence=evidence or {})
    return Step(rollout=moved, stage=stage, change=change)


def _end(
    rollout: Rollout,
    state: State,
    *,
    stage: stages.Stage,
    now: datetime,
    why: str,
    evidence: dict[str, Any],
    traceback: str | None = None,
) -> Step:
    step = _move(rollout, state, stage=stage, now=now, why=why, evidence=evidence)
    if state is State.DONE:
        return step
    error = f"{why}\n\n{traceback}" if traceback else why
    return dataclasses.replace(step, rollout=dataclasses.replace(step.rollout, error=error))
