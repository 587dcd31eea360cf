"""``push`` and ``apply``: from a file on this disk to a registered version."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from model_store import archive, manifest, provenance, spec, weights
from model_store import store as stores
from serving.cli import deploying, errors, options, output, replaying
from serving.cli.output import Output
from serving.cli.target import Target

NoReplay = Annotated[
    bool, typer.Option("--no-replay", help="Do not load the model and answer its golden inputs here first.")
]
Outside = Annotated[bool, typer.Option("--allow-outside", help="Accept files that lie outside FILE's folder.")]


def register(app: typer.Typer) -> None:
    app.command()(push)
    app.command()(apply)


@dataclass(frozen=True, kw_only=True)
class Pushed:
    model: str
    version: int
    digest: str


def push(
    file: Annotated[Path, typer.Argument(help="A model.yaml, or a config file with several models.")],
    no_replay: NoReplay = False,
    allow_outside: Outside = False,
    home: options.Home = options.DEFAULT_HOME,
    format: options.Format = Output.TABLE,
) -> None:
    """Pack a model, prove it on its golden inputs, upload and register it as a version."""
    target = Target.of(home)
    specs = spec.load(file, allow_outside=allow_outside)
    pushed = [publish(each, target, replay=not no_replay) for each in specs]
    if format is Output.JSON:
        documents = [asdict(each) for each in pushed]
        output.json_document(documents[0] if len(documents) == 1 else documents)
        return
    output.table(("MODEL", "VERSION", "DIGEST"), ((each.model, each.version, each.digest) for each in pushed))
    for each in pushed:
        output.note(f"serve it: slipway promote {each.model} {each.version} --wait")


def apply(
    file: Annotated[Path, typer.Option("--file", "-f", help="A config file with models, or a model.yaml.")],
    no_replay: NoReplay = False,
    allow_outside: Outside = False,
    timeout: options.WaitTimeout = options.DEFAULT_WAIT_S,
    home: options.Home = options.DEFAULT_HOME,
    format: options.Format = Output.TABLE,
) -> None:
    """Push every model of a file and promote it to production. Repeated, it changes nothing."""
    target = Target.of(home)
    specs = spec.load(file, allow_outside=allow_outside)
    control = target.control_plane()
    applied: list[dict[str, Any]] = []
    failed: list[errors.CliError] = []
    for pushed in [publish(each, target, replay=not no_replay) for each in specs]:
        body = {"version": pushed.version, "reason": f"slipway apply -f {file.name}"}
        rollout = control.post(f"/v1/models/{pushed.model}/promotions", body)
        rollout = deploying.wait_for(control, rollout, timeout_s=timeout)
        applied.append(asdict(pushed) | {"rollout": rollout["id"], "state": rollout["state"]})
        try:
            deploying.require_done(rollout)
        except errors.CliError as error:
            failed.append(error)
    if format is Output.JSON:
        output.json_document(applied)
    else:
        output.table(
            ("MODEL", "VERSION", "DIGEST", "ROLLOUT", "STATE"),
            ((each["model"], each["version"], each["digest"], each["rollout"], each["state"]) for each in applied),
        )
    if failed:
        raise errors.CliError(
            "; ".join(str(error) for error in failed), details="\n".join(error.details for error in failed)
        )


def publish(source: spec.Spec, target: Target, *, replay: bool) -> Pushed:
    """Bring one spec into the store and the registry; what is there already is used.

    Raises:
        CliError, ModelStoreError: and nothing is registered.
    """
    control = target.control_plane()
    # A control plane that is away is told before minutes of packing and uploading.
    control.get("/healthz")
    where = target.store
    folder = Path(tempfile.mkdtemp(prefix="slipway-push-"))
    try:
        if source.missing_weights is not None:
            with output.transfer(f"{source.name}: downloading {source.missing_weights}") as progress:
                source = weights.bring(source, where, folder / "weights", progress=progress)
        document, packed = _pack(source, folder, target, replay=replay)
        with output.transfer(f"{source.name}: uploading") as progress:
            published = stores.Store(where).publish(packed, document, progress=progress)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    body = {"manifest": published.model_dump(mode="json")}
    registered = control.post(f"/v1/models/{source.name}/versions", body)
    return Pushed(model=registered["model"], version=registered["version"], digest=registered["digest"])


def _pack(source: spec.Spec, folder: Path, target: Target, *, replay: bool) -> tuple[manifest.Manifest, Path]:
    with output.status(f"{source.name}: staging") as status:
        staged = archive.stage(source, folder / "staged")
        if replay:
            status.update(f"{source.name}: loading it and answering {len(source.golden)} golden inputs")
            replayed = replaying.replay(source, staged.folder, python=target.worker_python)
        else:
            replayed = replaying.Replayed(skipped="asked for with --no-replay")
        if replayed.skipped:
            status.note(f"{source.name}: golden replay skipped: {replayed.skipped}")
        if not source.golden:
            status.note(f"{source.name}: has no golden inputs; nothing proves a replica but that it loads")
        status.update(f"{source.name}: packing")
        packed = archive.pack(staged, folder / f"{source.name}.mar")
    document = provenance.manifest_for(packed, source, golden=replayed.golden, frameworks=replayed.frameworks)
    return document, packed.path
