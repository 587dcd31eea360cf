"""The tables. What a row means is said here; what may become of it is said in ``serving.domain``."""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar

from sqlalchemy import (
    JSON,
    BigInteger,
    CheckConstraint,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    MetaData,
    String,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from serving.db import types

ACTIVE_ROLLOUT = "ux_rollouts_active"
"""At most one rollout that has not ended for each model and stage, whatever the code above does."""

BigId = BigInteger().with_variant(Integer, "sqlite")
Document = JSON(none_as_null=True)


class Base(DeclarativeBase):
    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_name)s",
            "uq": "uq_%(table_name)s_%(column_0_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map: ClassVar[dict[Any, Any]] = {
        datetime: types.UtcDateTime,
        dict[str, Any]: Document,
        list[Any]: Document,
        str: String(255),
    }


class Model(Base):
    __tablename__ = "models"

    name: Mapped[str] = mapped_column(primary_key=True)
    description: Mapped[str] = mapped_column(Text)
    created_at: Mapped[datetime]
    created_by: Mapped[str]
    last_version: Mapped[int] = mapped_column(default=0)
    """Numbers are never given twice."""


class Version(Base):
    """Immutable once written."""

    __tablename__ = "versions"
    __table_args__ = (UniqueConstraint("model", "digest", name="uq_versions_model_digest"),)

    model: Mapped[str] = mapped_column(ForeignKey("models.name"), primary_key=True)
    version: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    digest: Mapped[str]
    pool: Mapped[str]
    manifest: Mapped[dict[str, Any]]
    created_at: Mapped[datetime]
    created_by: Mapped[str]


class Stage(Base):
    """``serving.domain.stages.Stage``; a missing row is a stage into which nothing was promoted."""

    __tablename__ = "stages"
    __table_args__ = (
        ForeignKeyConstraint(["model", "stable"], ["versions.model", "versions.version"], name="fk_stages_stable"),
        ForeignKeyConstraint(
            ["model", "candidate"], ["versions.model", "versions.version"], name="fk_stages_candidate"
        ),
    )

    model: Mapped[str] = mapped_column(ForeignKey("models.name"), primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True)
    stable: Mapped[int | None]
    candidate: Mapped[int | None]
    history: Mapped[list[Any]]
    replaced_at: Mapped[datetime | None]


class Rollout(Base):
    """``serving.domain.rollouts.Rollout``."""

    __tablename__ = "rollouts"
    __table_args__ = (
        ForeignKeyConstraint(["model", "to_version"], ["versions.model", "versions.version"], name="fk_rollouts_to"),
        Index(
            ACTIVE_ROLLOUT,
            "model",
            "stage",
            unique=True,
            sqlite_where=text("state IN ('pending', 'loading', 'shifting')"),
            postgresql_where=text("state IN ('pending', 'loading', 'shifting')"),
        ),
        Index("ix_rollouts_model_stage_id", "model", "stage", "id"),
        Index("ix_rollouts_shifted_at", "shifted_at"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    model: Mapped[str] = mapped_column(ForeignKey("models.name"))
    stage: Mapped[str]
    kind: Mapped[str]
    strategy: Mapped[str]
    from_version: Mapped[int | None]
    to_version: Mapped[int]
    state: Mapped[str]
    state_since: Mapped[datetime]
    actor: Mapped[str]
    reason: Mapped[str] = mapped_column(Text)
    created_at: Mapped[datetime]
    shifted_at: Mapped[datetime | None]
    routed_at: Mapped[datetime | None]
    before: Mapped[dict[str, Any]]
    progress: Mapped[dict[str, Any]]
    error: Mapped[str | None] = mapped_column(Text)
    request_key: Mapped[str | None] = mapped_column(unique=True)
    """The ``Idempotency-Key`` that asked for it: even a repeat after a crash finds the same rollout."""


class Pool(Base):
    """A pool's newest assignment, by reference."""

    __tablename__ = "pools"

    name: Mapped[str] = mapped_column(primary_key=True)
    generation: Mapped[int] = mapped_column(BigId)
    versions: Mapped[list[Any]]
    """``[model, version]`` pairs, sorted."""
    changed_at: Mapped[datetime]


class Replica(Base):
    __tablename__ = "replicas"

    name: Mapped[str] = mapped_column(primary_key=True)
    pool: Mapped[str]
    report: Mapped[dict[str, Any]]
    fingerprint: Mapped[str]
    """Of ``report``: a heartbeat that says nothing new only moves ``last_seen``."""
    last_seen: Mapped[datetime]


class Gateway(Base):
    __tablename__ = "gateways"

    name: Mapped[str] = mapped_column(primary_key=True)
    report: Mapped[dict[str, Any]]
    fingerprint: Mapped[str]
    last_seen: Mapped[datetime]


class GatewayConfig(Base):
    """Configurations by revision: the newest (largest ``sequence``), and those that may still be in force somewhere."""

    __tablename__ = "gateway_configs"

    revision: Mapped[str] = mapped_column(primary_key=True)
    sequence: Mapped[int] = mapped_column(BigId, unique=True)
    body: Mapped[dict[str, Any]]
    created_at: Mapped[datetime]


class Controller(Base):
    """One row: what all control planes on this database share."""

    __tablename__ = "controller"
    __table_args__ = (CheckConstraint("id = 1", name="single_row"),)

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    reconciled_at: Mapped[datetime]
    observing_since: Mapped[datetime]
    """Since when some control plane has been listening without a gap."""


class Event(Base):
    """Append-only: triggers refuse UPDATE and DELETE."""

    __tablename__ = "events"
    __table_args__ = (Index("ix_events_model_id", "model", "id"), Index("ix_events_rollout_id", "rollout"))

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    at: Mapped[datetime]
    actor: Mapped[str]
    action: Mapped[str]
    model: Mapped[str | None]
    stage: Mapped[str | None]
    version: Mapped[int | None]
    rollout: Mapped[str | None]
    reason: Mapped[str] = mapped_column(Text)
    evidence: Mapped[dict[str, Any]]


class IdempotentRequest(Base):
    """The answer that was given under an ``Idempotency-Key``; without a status: it is being worked on."""

    __tablename__ = "idempotent_requests"
    __table_args__ = (Index("ix_idempotent_requests_created_at", "created_at"),)

    key: Mapped[str] = mapped_column(primary_key=True)
    path: Mapped[str] = mapped_column(primary_key=True)
    fingerprint: Mapped[str]
    created_at: Mapped[datetime]
    status: Mapped[int | None]
    headers: Mapped[dict[str, Any] | None]
    body: Mapped[str | None] = mapped_column(Text)
