"""The resources as clients see them. ``serving.domain.wire`` has those of agents and gateways."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from model_store.manifest import Manifest, ModelName
from serving.db import tables
from serving.domain import facts, rollouts, strategies, wire
from serving.domain import stages as rules

MAX_VERSION = 2**31 - 1

Reason = Annotated[str, StringConstraints(max_length=2000, pattern=r"^[^\x00]*$")]
VersionNumber = Annotated[int, Field(ge=1, le=MAX_VERSION)]

_WHEN = "2026-03-01T12:00:00Z"


class _Body(BaseModel):
    # A misspelled field would silently be another request than the client meant.
    model_config = ConfigDict(extra="forbid")


class NewModel(_Body):
    model_config = ConfigDict(json_schema_extra={"examples": [{"name": "digits", "description": "Handwritten digits"}]})

    name: ModelName
    description: Reason = ""


class NewVersion(_Body):
    manifest: Manifest = Field(description="as stored in the bucket beside the archive")


class NewPromotion(_Body):
    model_config = ConfigDict(
        json_schema_extra={"examples": [{"version": 2, "to": "production", "reason": "0.4% better on held-out data"}]}
    )

    version: VersionNumber
    to: rules.Name = rules.Name.PRODUCTION
    strategy: strategies.Strategy = strategies.Strategy.ALL_AT_ONCE
    reason: Reason = ""


class NewRollback(_Body):
    model_config = ConfigDict(json_schema_extra={"examples": [{"reason": "answers nonsense for sevens"}]})

    stage: rules.Name = rules.Name.PRODUCTION
    reason: Reason = ""


class NewAbort(_Body):
    model_config = ConfigDict(json_schema_extra={"examples": [{"reason": "wrong version"}]})

    reason: Reason = ""


class Stage(BaseModel):
    model: str
    stage: rules.Name
    stable: int | None = Field(description="the version that answers; null while nothing was promoted")
    candidate: int | None = Field(description="the version that a rollout is loading")
    last_good: int | None = Field(description="the version that a rollback returns to")
    history: list[int] = Field(description="versions that were stable before, the latest last")
    replaced_at: datetime | None
    rollout: str | None = Field(description="the rollout under way")

    @classmethod
    def of(cls, stage: rules.Stage, *, rollout: str | None) -> Stage:
        return cls(
            model=stage.model,
            stage=stage.name,
            stable=stage.stable,
            candidate=stage.candidate,
            last_good=stage.last_good,
            history=list(stage.history),
            replaced_at=stage.replaced_at,
            rollout=rollout,
        )


class Model(BaseModel):
    name: str
    description: str
    created_at: datetime
    created_by: str
    latest_version: int | None
    stages: dict[rules.Name, int | None] = Field(description="stage → stable version")

    @classmethod
    def of(cls, row: tables.Model, known: list[rules.Stage]) -> Model:
        return cls(
            name=row.name,
            description=row.description,
            created_at=row.created_at,
            created_by=row.created_by,
            latest_version=row.last_version or None,
            stages={stage.name: stage.stable for stage in known},
        )


class VersionSummary(BaseModel):
    model: str
    version: int
    digest: str
    pool: str
    size_bytes: int
    handler: str
    metrics: dict[str, float]
    created_at: datetime
    created_by: str
    stages: list[rules.Name] = Field(description="stages in which it is stable")
    replicas: dict[str, wire.ServerState] = Field(description="replica → state of its server process")

    @classmethod
    def of(
        cls, row: tables.Version, *, known: list[rules.Stage], replicas: dict[str, wire.ServerState]
    ) -> VersionSummary:
        return cls(**_summary(row, known, replicas))


class Version(VersionSummary):
    manifest: Manifest

    @classmethod
    def of(cls, row: tables.Version, *, known: list[rules.Stage], replicas: dict[str, wire.ServerState]) -> Version:
        return cls(**_summary(row, known, replicas), manifest=Manifest.model_validate(row.manifest))


class Rollout(BaseModel):
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "id": "ro-0195512f4a00c0ffee",
                    "model": "digits",
                    "stage": "production",
                    "kind": "promotion",
                    "strategy": "all-at-once",
                    "from_version": 1,
                    "to_version": 2,
                    "state": "loading",
                    "state_since": _WHEN,
                    "created_at": _WHEN,
                    "shifted_at": None,
                    "ended_at": None,
                    "actor": "ada",
                    "reason": "0.4% better on held-out data",
                    "progress": {
                        "message": "ready on 0 of 1 replicas (local is warming)",
                        "pool": "cpu",
                        "ready": [],
                        "waiting": {"local": "warming"},
                        "failed": {},
                    },
                    "error": None,
                }
            ]
        }
    )

    id: str
    model: str
    stage: rules.Name
    kind: rollouts.Kind
    strategy: strategies.Strategy
    from_version: int | None
    to_version: int
    state: rollouts.State
    state_since: datetime
    created_at: datetime
    shifted_at: datetime | None = Field(description="when traffic began to move")
    ended_at: datetime | None
    actor: str
    reason: str
    progress: dict[str, Any] = Field(description="message, and the evidence of the present state")
    error: str | None = Field(description="why it failed or was rolled back, with the worker's own traceback")

    @classmethod
    def of(cls, rollout: rollouts.Rollout) -> Rollout:
        return cls(
            id=rollout.id,
            model=rollout.model,
            stage=rollout.stage,
            kind=rollout.kind,
            strategy=rollout.strategy,
            from_version=rollout.from_version,
            to_version=rollout.to_version,
            state=rollout.state,
            state_since=rollout.state_since,
            created_at=rollout.created_at,
            shifted_at=rollout.shifted_at,
            ended_at=rollout.state_since if rollout.state.is_terminal else None,
            actor=rollout.actor,
            reason=rollout.reason,
            progress=rollout.progress,
            error=rollout.error,
        )


class Pool(BaseModel):
    pool: str
    generation: int
    versions: list[wire.VersionRef] = Field(description="what every replica of the pool is to hold")
    replicas: list[str] = Field(description="live ones")


class Replica(BaseModel):
    replica: str
    pool: str
    live: bool = Field(description="heard of within the heartbeat's time to live")
    last_seen: datetime
    started_at: datetime
    draining: bool
    generation: int
    agent_url: str
    cores: int
    memory_bytes: int
    servers: list[wire.ServerReport]

    @classmethod
    def of(cls, replica: facts.Replica, *, live: bool) -> Replica:
        fields = replica.report.model_dump()
        return cls(**fields, live=live, last_seen=replica.last_seen)


class Gateway(BaseModel):
    gateway: str
    url: str
    live: bool
    last_seen: datetime
    applied_revision: str | None
    is_current: bool = Field(description="whether it serves the newest configuration")
    active: list[wire.ActiveRequests]
    error: str | None

    @classmethod
    def of(cls, gateway: facts.Gateway, *, live: bool, newest: str) -> Gateway:
        fields = gateway.report.model_dump()
        is_current = gateway.report.applied_revision == newest
        return cls(**fields, live=live, last_seen=gateway.last_seen, is_current=is_current)


class GatewayAck(BaseModel):
    revision: str = Field(description="of the newest configuration")


class Event(BaseModel):
    id: int
    at: datetime
    actor: str
    action: str
    model: str | None
    stage: str | None
    version: int | None
    rollout: str | None
    reason: str
    evidence: dict[str, Any]

    @classmethod
    def of(cls, row: tables.Event) -> Event:
        return cls.model_validate(row, from_attributes=True)


class Problem(BaseModel):
    """RFC 9457; further members depend on the type."""

    model_config = ConfigDict(
        extra="allow",
        json_schema_extra={
            "examples": [
                {
                    "type": "urn:slipway:error:rollout-in-progress",
                    "status": 409,
                    "title": "Conflict",
                    "detail": "rollout ro-0195512f4a00c0ffee is moving digits in production to version 2 (loading); "
                    "wait for it, or abort it first",
                    "rollout": "ro-0195512f4a00c0ffee",
                    "state": "loading",
                }
            ]
        },
    )

    type: str
    status: int
    title: str
    detail: str


def _summary(row: tables.Version, known: list[rules.Stage], replicas: dict[str, wire.ServerState]) -> dict[str, Any]:
    return {
        "model": row.model,
        "version": row.version,
        "digest": row.digest,
        "pool": row.pool,
        "size_bytes": row.manifest["size_bytes"],
        "handler": row.manifest["config"]["handler"],
        "metrics": row.manifest.get("metrics", {}),
        "created_at": row.created_at,
        "created_by": row.created_by,
        "stages": [stage.name for stage in known if stage.stable == row.version],
        "replicas": replicas,
    }
