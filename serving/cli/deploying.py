"""``promote``, ``rollback``, ``abort``, ``rollouts``: moving a stage from one version to another."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from serving.cli import errors, options, output
from serving.cli.client import ControlPlane
from serving.cli.output import Output
from serving.cli.target import Target
from serving.domain import rollouts as rules
from serving.domain import stages


def register(app: typer.Typer) -> None:
    app.command()(promote)
    app.command()(rollback)
    app.command()(abort)
    app.command()(rollouts)


def promote(
    name: Annotated[str, typer.Argument(help="The model.")],
    version: Annotated[int, typer.Argument(min=1, help="Its version that the stage is to serve.")],
    to: Annotated[stages.Name, typer.Option("--to", help="The stage.")] = stages.Name.PRODUCTION,
    wait: options.Wait = False,
    timeout: options.WaitTimeout = options.DEFAULT_WAIT_S,
    reason: options.Reason = "",
    home: options.Home = options.DEFAULT_HOME,
    format: options.Format = Output.TABLE,
) -> None:
    """Move a stage to a version: replicas load and prove it, then traffic moves."""
    control = Target.of(home).control_plane()
    body = {"version": version, "to": to.value, "reason": reason}
    rollout = control.post(f"/v1/models/{name}/promotions", body)
    _finish(control, rollout, wait=wait, timeout_s=timeout, format=format)


def rollback(
    name: Annotated[str, typer.Argument(help="The model.")],
    stage: options.Stage = stages.Name.PRODUCTION,
    wait: options.Wait = False,
    timeout: options.WaitTimeout = options.DEFAULT_WAIT_S,
    reason: options.Reason = "",
    home: options.Home = options.DEFAULT_HOME,
    format: options.Format = Output.TABLE,
) -> None:
    """Move a stage back to the version before."""
    control = Target.of(home).control_plane()
    rollout = control.post(f"/v1/models/{name}/rollback", {"stage": stage.value, "reason": reason})
    _finish(control, rollout, wait=wait, timeout_s=timeout, format=format)


def abort(
    rollout: Annotated[str, typer.Argument(help="Its id, as promote and rollouts print it.")],
    reason: options.Reason = "",
    home: options.Home = options.DEFAULT_HOME,
    format: options.Format = Output.TABLE,
) -> None:
    """Stop a rollout; the stage goes back to what it served before."""
    ended = Target.of(home).control_plane().post(f"/v1/rollouts/{rollout}:abort", {"reason": reason})
    _show(ended, format)


def rollouts(
    rollout: Annotated[str | None, typer.Argument(help="One rollout in full.")] = None,
    model: Annotated[str | None, typer.Option("--model", help="Only those of a model.")] = None,
    stage: Annotated[stages.Name | None, typer.Option("--stage", help="Only those of a stage.")] = None,
    state: Annotated[list[rules.State] | None, typer.Option("--state", help="Only those; repeat for several.")] = None,
    limit: options.Limit = 20,
    home: options.Home = options.DEFAULT_HOME,
    format: options.Format = Output.TABLE,
) -> None:
    """List rollouts, newest first, or show one."""
    control = Target.of(home).control_plane()
    if rollout is not None:
        found = control.get(f"/v1/rollouts/{rollout}")
        _show(found, format)
        if found["error"] and format is Output.TABLE:
            output.line(found["error"])
        return
    wanted = {"model": model, "stage": stage and stage.value, "state": [each.value for each in state or []] or None}
    listed = list(control.items("/v1/rollouts", limit=limit, **wanted))
    if format is Output.JSON:
        output.json_document(listed)
    else:
        _table(listed)


def wait_for(control: ControlPlane, rollout: dict[str, Any], *, timeout_s: float) -> dict[str, Any]:
    """Return the rollout once it has ended, well or badly.

    Raises:
        Unavailable: the time is up; the rollout goes on.
    """
    deadline = time.monotonic() + timeout_s
    with output.status(_progress(rollout)) as status:
        while not rules.State(rollout["state"]).is_terminal:
            if time.monotonic() >= deadline:
                raise errors.Unavailable(
                    f"{rollout['id']} is still {rollout['state']} after {timeout_s:g} s ({_message(rollout)}); it goes "
                    f'on: "slipway rollouts {rollout["id"]}" shows it, "slipway abort {rollout["id"]}" ends it'
                )
            rollout = control.rollout(rollout["id"], known=rollout["state"])
            status.update(_progress(rollout))
    return rollout


def require_done(rollout: dict[str, Any]) -> None:
    """Raises CliError with the worker's own words when a rollout did not end well."""
    if rollout["state"] == rules.State.DONE:
        return
    *details, last = (rollout["error"] or "no reason was given").strip().splitlines()
    still = rollout["from_version"]
    serves = f"version {still} goes on serving" if still else "nothing is served"
    raise errors.CliError(
        f"{rollout['model']} version {rollout['to_version']} did not get into {rollout['stage']}: "
        f"{rollout['state']} ({last}); {serves}",
        details="\n".join(details),
    )


def _finish(control: ControlPlane, rollout: dict[str, Any], *, wait: bool, timeout_s: float, format: Output) -> None:
    if wait:
        rollout = wait_for(control, rollout, timeout_s=timeout_s)
    _show(rollout, format)
    if rules.State(rollout["state"]).is_terminal:
        require_done(rollout)


def _show(rollout: dict[str, Any], format: Output) -> None:
    if format is Output.JSON:
        output.json_document(rollout)
    else:
        _table([rollout])


def _table(listed: list[dict[str, Any]]) -> None:
    output.table(
        ("ROLLOUT", "KIND", "MODEL", "STAGE", "FROM", "TO", "STATE", "SINCE", "BY", "WHY"),
        (
            (
                each["id"],
                each["kind"],
                each["model"],
                each["stage"],
                each["from_version"],
                each["to_version"],
                each["state"],
                output.ago(each["state_since"]),
                each["actor"],
                each["reason"],
            )
            for each in listed
        ),
    )


def _message(rollout: dict[str, Any]) -> str:
    return str(rollout["progress"].get("message") or rollout["state"])


def _progress(rollout: dict[str, Any]) -> str:
    where = f"{rollout['model']} {rollout['to_version']} → {rollout['stage']}"
    return f"{where}: {rollout['state']} ({_message(rollout)})"
