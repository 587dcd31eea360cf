"""Models and their immutable versions."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.orm import Session

from model_store.manifest import Manifest
from serving.db import events, tables
from serving.domain import errors


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered:
    version: tables.Version
    is_new: bool


def create_model(
    session: Session, *, name: str, description: str, actor: str, now: datetime
) -> tuple[tables.Model, bool]:
    """The model of that name, made if need be, and whether it is new. Call under ``exclusive``."""
    model = session.get(tables.Model, name)
    if model is not None:
        return model, False
    model = tables.Model(name=name, description=description, created_at=now, created_by=actor, last_version=0)
    session.add(model)
    events.append(session, at=now, actor=actor, action="model.created", model=name)
    session.flush()
    return model, True


def register(session: Session, *, manifest: Manifest, actor: str, now: datetime) -> Registered:
    """Give a digest its version number: the one it has, or the model's next. Call under ``exclusive``."""
    known = find_digest(session, manifest.model, manifest.digest)
    if known is not None:
        return Registered(version=known, is_new=False)
    model, _ = create_model(session, name=manifest.model, description=manifest.description, actor=actor, now=now)
    model.last_version += 1
    if manifest.description:
        model.description = manifest.description
    version = tables.Version(
        model=manifest.model,
        version=model.last_version,
        digest=manifest.digest,
        pool=manifest.pool,
        manifest=manifest.model_dump(mode="json"),
        created_at=now,
        created_by=actor,
    )
    session.add(version)
    events.append(
        session,
        at=now,
        actor=actor,
        action="version.registered",
        model=manifest.model,
        version=version.version,
        evidence={"digest": manifest.digest, "size_bytes": manifest.size_bytes, "metrics": manifest.metrics},
    )
    session.flush()
    return Registered(version=version, is_new=True)


def find_digest(session: Session, model: str, digest: str) -> tables.Version | None:
    query = sa.select(tables.Version).where(tables.Version.model == model, tables.Version.digest == digest)
    return session.scalars(query).one_or_none()


def model(session: Session, name: str) -> tables.Model:
    """Raises errors.NotFound."""
    found = session.get(tables.Model, name)
    if found is None:
        raise errors.NotFound(
            f'there is no model "{name}"; "slipway models" lists those there are', kind="model-not-found", model=name
        )
    return found


def version(session: Session, name: str, number: int) -> tables.Version:
    """Raises errors.NotFound."""
    found_model = model(session, name)
    found = session.get(tables.Version, (name, number))
    if found is None:
        has = (
            f"it has versions 1 to {found_model.last_version}" if found_model.last_version else "it has no version yet"
        )
        raise errors.NotFound(
            f"{name} has no version {number}: {has}", kind="version-not-found", model=name, version=number
        )
    return found


def models(session: Session, *, after: str | None, limit: int) -> list[tables.Model]:
    """Up to ``limit`` models, by name."""
    query = sa.select(tables.Model).order_by(tables.Model.name).limit(limit)
    return list(session.scalars(query if after is None else query.where(tables.Model.name > after)))


def versions(session: Session, name: str, *, before: int | None, limit: int) -> list[tables.Version]:
    """Up to ``limit`` versions of a model, newest first. Raises errors.NotFound."""
    model(session, name)
    query = sa.select(tables.Version).where(tables.Version.model == name)
    if before is not None:
        query = query.where(tables.Version.version < before)
    return list(session.scalars(query.order_by(tables.Version.version.desc()).limit(limit)))
