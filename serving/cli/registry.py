"""``models``, ``versions``, ``describe``, ``events``: what there is, and what happened."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from serving.cli import options, output
from serving.cli.output import Output
from serving.cli.target import Target

DIGEST_CHARACTERS = 12


def register(app: typer.Typer) -> None:
    app.command()(models)
    app.command()(versions)
    app.command()(describe)
    app.command()(events)


def models(home: options.Home = options.DEFAULT_HOME, format: options.Format = Output.TABLE) -> None:
    """List models and what each stage serves."""
    found = list(Target.of(home).control_plane().items("/v1/models"))
    if format is Output.JSON:
        output.json_document(found)
        return
    if not found:
        output.note('there are no models yet; "slipway push FILE" makes one')
        return
    output.table(
        ("MODEL", "LATEST", "PRODUCTION", "STAGING", "DESCRIPTION"),
        (
            (
                model["name"],
                model["latest_version"],
                model["stages"].get("production"),
                model["stages"].get("staging"),
                model["description"],
            )
            for model in found
        ),
    )


def versions(
    name: Annotated[str, typer.Argument(help="The model.")],
    home: options.Home = options.DEFAULT_HOME,
    limit: options.Limit = 50,
    format: options.Format = Output.TABLE,
) -> None:
    """List a model's versions, newest first."""
    found = list(Target.of(home).control_plane().items(f"/v1/models/{name}/versions", limit=limit))
    if format is Output.JSON:
        output.json_document(found)
        return
    output.table(
        ("VERSION", "DIGEST", "STAGES", "REPLICAS", "SIZE", "HANDLER", "METRICS", "CREATED", "BY"),
        (
            (
                version["version"],
                version["digest"][:DIGEST_CHARACTERS],
                ", ".join(version["stages"]),
                _counted(version["replicas"]),
                output.size(version["size_bytes"]),
                version["handler"],
                _metrics(version["metrics"]),
                output.ago(version["created_at"]),
                version["created_by"],
            )
            for version in found
        ),
    )


def describe(
    name: Annotated[str, typer.Argument(help="The model.")],
    version: Annotated[int | None, typer.Argument(min=1, help="A version; without it, the latest.")] = None,
    home: options.Home = options.DEFAULT_HOME,
    format: options.Format = Output.TABLE,
) -> None:
    """Show a model, its stages, and one version with its manifest."""
    control = Target.of(home).control_plane()
    model = control.get(f"/v1/models/{name}")
    stages = control.get(f"/v1/models/{name}/stages")["items"]
    number = version or model["latest_version"]
    detail = control.get(f"/v1/models/{name}/versions/{number}") if number else None
    if format is Output.JSON:
        output.json_document({"model": model, "stages": stages, "version": detail})
        return
    output.line(f"{model['name']}  {model['description']}".rstrip())
    output.table(
        ("STAGE", "VERSION", "CANDIDATE", "BEFORE", "ROLLOUT"),
        ((s["stage"], s["stable"], s["candidate"], _history(s["history"]), s["rollout"]) for s in stages),
    )
    if detail is not None:
        output.line("")
        _describe_version(detail)


def events(
    name: Annotated[str | None, typer.Argument(help="Only those of a model.")] = None,
    home: options.Home = options.DEFAULT_HOME,
    limit: options.Limit = 20,
    format: options.Format = Output.TABLE,
) -> None:
    """Show who changed what and why, newest first."""
    found = list(Target.of(home).control_plane().items("/v1/events", limit=limit, model=name))
    if format is Output.JSON:
        output.json_document(found)
        return
    output.table(
        ("WHEN", "WHO", "WHAT", "MODEL", "STAGE", "VERSION", "WHY"),
        (
            (
                output.ago(event["at"]),
                event["actor"],
                event["action"],
                event["model"],
                event["stage"],
                event["version"],
                event["reason"],
            )
            for event in found
        ),
    )


def _describe_version(version: dict[str, Any]) -> None:
    manifest = version["manifest"]
    provenance = manifest["provenance"]
    rows = [
        ("digest", version["digest"]),
        ("size", f"{output.size(version['size_bytes'])}, {output.size(manifest['unpacked_bytes'])} unpacked"),
        ("handler", version["handler"]),
        ("pool", version["pool"]),
        ("stages", ", ".join(version["stages"])),
        ("replicas", ", ".join(f"{replica}: {state}" for replica, state in version["replicas"].items())),
        ("metrics", _metrics(version["metrics"])),
        ("inputs", _tensors(manifest["config"]["signature"]["inputs"])),
        ("outputs", _tensors(manifest["config"]["signature"]["outputs"])),
        ("golden", f"{len(manifest['golden'])} of {len(manifest['config']['golden'])} inputs have a known answer"),
        ("options", ", ".join(f"{key}={value}" for key, value in manifest["config"]["options"].items())),
        ("made", f"{output.ago(version['created_at'])} by {version['created_by']} on {provenance['host']}"),
        ("source", " at commit ".join(filter(None, (provenance["source"], provenance["git_commit"])))),
        ("frameworks", ", ".join(f"{key} {value}" for key, value in provenance["frameworks"].items())),
    ]
    output.table((f"VERSION {version['version']}", ""), rows)


def _counted(states: dict[str, str]) -> str:
    counts = {state: list(states.values()).count(state) for state in dict.fromkeys(states.values())}
    return ", ".join(f"{count} {state}" for state, count in counts.items())


def _metrics(metrics: dict[str, float]) -> str:
    return ", ".join(f"{name}={value:g}" for name, value in metrics.items())


def _tensors(tensors: list[dict[str, Any]]) -> str:
    return ", ".join(f"{each['name']} {each['datatype']}{each['shape']}" for each in tensors)


def _history(versions: list[int]) -> str:
    return ", ".join(str(version) for version in reversed(versions[-5:]))
