"""``/v1/models``: models, their versions and stages."""

from __future__ import annotations

import json
import logging
from typing import Annotated

import fastapi
from starlette.responses import Response

from model_store import errors as store_errors
from model_store.manifest import SCHEMA_VERSION, Manifest
from serving.api import idempotency, paging, schemas
from serving.api.context import Actor, Context, Current, IdempotencyKey
from serving.db import registry, tables
from serving.db import stages as stored
from serving.domain import errors, stages, wire

router = fastapi.APIRouter(prefix="/v1/models", tags=["models"], route_class=idempotency.Route)

_log = logging.getLogger(__name__)

Number = Annotated[int, fastapi.Path(ge=1, le=schemas.MAX_VERSION)]


@router.get("", summary="List models")
def list_models(
    request: fastapi.Request, current: Current, limit: paging.Limit = paging.DEFAULT_LIMIT, cursor: paging.Cursor = None
) -> paging.Page[schemas.Model]:
    with current.database.read() as session:
        rows = registry.models(session, after=cursor, limit=limit + 1)
        known = stored.stages_of(session, [row.name for row in rows])
    return paging.page(
        request,
        rows,
        limit=limit,
        shape=lambda row: schemas.Model.of(row, known[row.name]),
        key=lambda row: row.name,
    )


@router.post("", status_code=201, summary="Create a model; 200 when it exists")
def create_model(
    body: schemas.NewModel, response: Response, current: Current, actor: Actor, _key: IdempotencyKey
) -> schemas.Model:
    with current.database.exclusive() as session:
        row, is_new = registry.create_model(
            session, name=body.name, description=body.description, actor=actor, now=current.clock()
        )
        known = stored.stages_of(session, [row.name])[row.name]
    current.controller.wake()
    response.status_code = 201 if is_new else 200
    response.headers["location"] = f"/v1/models/{row.name}"
    return schemas.Model.of(row, known)


@router.get("/{model}", summary="One model")
def get_model(model: str, current: Current) -> schemas.Model:
    with current.database.read() as session:
        row = registry.model(session, model)
        return schemas.Model.of(row, stored.stages_of(session, [model])[model])


@router.get("/{model}/versions", summary="List a model's versions, newest first")
def list_versions(
    model: str,
    request: fastapi.Request,
    current: Current,
    limit: paging.Limit = paging.DEFAULT_LIMIT,
    cursor: paging.Cursor = None,
) -> paging.Page[schemas.VersionSummary]:
    with current.database.read() as session:
        rows = registry.versions(session, model, before=paging.number(cursor), limit=limit + 1)
        known = stored.stages_of(session, [model])[model]
    return paging.page(
        request,
        rows,
        limit=limit,
        shape=lambda row: schemas.VersionSummary.of(row, known=known, replicas=_replicas(current, row)),
        key=lambda row: row.version,
    )


@router.post(
    "/{model}/versions", status_code=201, summary="Register a version; 200 when its digest has a number already"
)
def register_version(
    model: str, body: schemas.NewVersion, response: Response, current: Current, actor: Actor, _key: IdempotencyKey
) -> schemas.Version:
    manifest = body.manifest
    _check(model, manifest)
    with current.database.read() as session:
        row, is_new = registry.find_digest(session, model, manifest.digest), False
    if row is None:
        _check_archive(current, manifest)
        with current.database.exclusive() as session:
            registered = registry.register(session, manifest=manifest, actor=actor, now=current.clock())
        row, is_new = registered.version, registered.is_new
        current.controller.wake()
    with current.database.read() as session:
        known = stored.stages_of(session, [model])[model]
    response.status_code = 201 if is_new else 200
    response.headers["location"] = f"/v1/models/{model}/versions/{row.version}"
    return schemas.Version.of(row, known=known, replicas=_replicas(current, row))


@router.get("/{model}/versions/{version}", summary="One version, with its manifest")
def get_version(model: str, version: Number, current: Current) -> schemas.Version:
    with current.database.read() as session:
        row = registry.version(session, model, version)
        known = stored.stages_of(session, [model])[model]
    return schemas.Version.of(row, known=known, replicas=_replicas(current, row))


@router.get("/{model}/stages", summary="A model's stages")
def list_stages(model: str, current: Current) -> paging.Page[schemas.Stage]:
    with current.database.read() as session:
        registry.model(session, model)
        running = {rollout.stage: rollout.id for rollout in stored.active(session, model)}
        known = stored.stages_of(session, [model])[model]
    return paging.Page[schemas.Stage](
        items=[schemas.Stage.of(stage, rollout=running.get(stage.name)) for stage in known]
    )


@router.get("/{model}/stages/{stage}", summary="One stage")
def get_stage(model: str, stage: str, current: Current) -> schemas.Stage:
    if stage not in list(stages.Name):
        raise errors.NotFound(
            f'there is no stage "{stage}"; the stages are {", ".join(stages.Name)}', kind="stage-not-found", stage=stage
        )
    name = stages.Name(stage)
    with current.database.read() as session:
        registry.model(session, model)
        running = next((rollout.id for rollout in stored.active(session, model, name)), None)
        return schemas.Stage.of(stored.stage(session, model, name), rollout=running)


def _check(model: str, manifest: Manifest) -> None:
    if manifest.model != model:
        raise errors.Invalid(
            f"the manifest is of model {manifest.model}, the path names {model}; they have to be the same",
            kind="model-mismatch",
        )
    if manifest.schema_version > SCHEMA_VERSION:
        raise errors.Invalid(
            f"the manifest has schema version {manifest.schema_version}, this control plane reads up to "
            f"{SCHEMA_VERSION}; upgrade it first",
            kind="manifest-too-new",
        )
    try:
        json.dumps(manifest.model_dump(), allow_nan=False, default=str)
    except ValueError as error:
        raise errors.Invalid(
            "the manifest has a number beyond what JSON can carry (as 1e999): replicas could not read it",
            kind="number-out-of-range",
        ) from error


def _check_archive(current: Context, manifest: Manifest) -> None:
    """A version whose archive is not there could never load: say so now."""
    if current.archives is None:
        return
    try:
        size = current.archives.head(manifest.digest)
    except store_errors.ModelStoreError as error:
        _log.warning("the model store does not answer", extra={"error": str(error)})
        raise errors.Unavailable(
            f"cannot check that the archive is in the model store: {error}", kind="store-unavailable", retry_after_s=5
        ) from error
    if size is None:
        raise errors.Invalid(
            f"the model store has no archive with digest {manifest.digest}; publish it before registering the version",
            kind="archive-missing",
            digest=manifest.digest,
        )
    if size != manifest.size_bytes:
        raise errors.Invalid(
            f"the archive in the model store has {size} bytes, the manifest says {manifest.size_bytes}; "
            "the upload was cut short or changed: publish it again",
            kind="archive-size-mismatch",
            digest=manifest.digest,
        )


def _replicas(current: Context, row: tables.Version) -> dict[str, wire.ServerState]:
    """States of the version's server processes; empty while this process has not read any report."""
    snapshot = current.board.snapshot
    if snapshot is None:
        return {}
    return {
        replica.report.replica: server.state
        for replica in snapshot.facts.replicas
        for server in replica.report.servers
        if (server.model, server.version) == (row.model, row.version)
    }
