"""``up``, ``down``, ``status``, ``logs``: the local stack."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from model_store import settings as store_settings
from serving.cli import errors, foreground, options, output
from serving.cli.output import Output
from serving.local import background, logfiles, parts, ports, running
from serving.local.home import Home, Stack

FOLLOW_POLL_S = 0.3


def register(app: typer.Typer) -> None:
    app.command()(up)
    app.command()(down)
    app.command()(status)
    app.command()(logs)


def up(
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Return once it answers, and leave it running.")
    ] = False,
    port: Annotated[
        int | None, typer.Option("--port", min=1, max=65_535, help="Of the gateway.", show_default="8080, or as before")
    ] = None,
    control_port: Annotated[
        int | None,
        typer.Option(
            "--control-port", min=1, max=65_535, help="Of the control plane.", show_default="8090, or as before"
        ),
    ] = None,
    example: Annotated[
        list[Path] | None,
        typer.Option("--example", help="A model.yaml that is published and promoted if its model is new; repeatable."),
    ] = None,
    timeout: Annotated[
        float, typer.Option("--timeout", min=0, help="Seconds until what was promoted before must answer again.")
    ] = running.ANSWER_TIMEOUT_S,
    home: options.Home = options.DEFAULT_HOME,
) -> None:
    """Start store, control plane, gateway and agent on this machine.

    With SLIPWAY_STORE set, that store is used and none is started.
    """
    wishes = running.Wishes(
        home=Home(home),
        ports={ports.GATEWAY: port, ports.CONTROL_PLANE: control_port},
        answer_timeout_s=timeout,
        options=parts.Options(with_store=not store_settings.configured()),
    )
    examples = list(example or [])
    if not detach:
        foreground.run(wishes, examples=examples)
        return
    with output.status("starting") as status:
        message = background.start(wishes, tell=foreground.Progress(status).tell)
    if message.kind == "degraded":
        raise errors.Unavailable(foreground.degraded(wishes.home, message))
    stack = message.stack
    assert stack is not None
    foreground.publish_examples(wishes.home, stack, examples, say=output.note)
    output.note(foreground.addresses(stack))


def down(
    home: options.Home = options.DEFAULT_HOME,
    timeout: Annotated[float, typer.Option("--timeout", min=1, help="Most seconds.")] = background.STOP_TIMEOUT_S,
) -> None:
    """Stop the stack in order: no new requests, those under way answered, then everything else."""
    where = Home(home)
    with output.status(f"stopping the stack in {where}"):
        killed = background.stop(where, timeout_s=timeout)
    if killed:
        output.note(f"had to be ended, as their supervisor was gone or too slow: {', '.join(killed)}")
    output.note("stopped")


def status(home: options.Home = options.DEFAULT_HOME, format: options.Format = Output.TABLE) -> None:
    """Show the stack's addresses and parts."""
    stack = background.running(Home(home))
    if format is Output.JSON:
        output.json_document(document(stack))
        return
    output.table(
        (f"STACK {stack.state}", str(Home(home))),
        (
            ("gateway", stack.gateway),
            ("control plane", stack.control_plane),
            ("store", " at ".join(filter(None, (stack.store.url, stack.store.endpoint)))),
            ("started", output.ago(stack.started_at)),
        ),
    )
    output.line("")
    output.table(
        ("PART", "PID", "STATE", "SINCE", "RESTARTS", "ERROR"),
        (
            (part.name, part.pid, part.state, output.ago(part.since), part.restarts or "", part.error)
            for part in stack.parts
        ),
    )


def document(stack: Stack) -> dict[str, Any]:
    """What ``status --output json`` prints: scripts rely on it."""
    return {
        "gateway": stack.gateway,
        "control_plane": stack.control_plane,
        "store": stack.store.endpoint or stack.store.url,
        "bucket": stack.store.url,
        "state": stack.state.value,
        "started_at": stack.started_at,
        "supervisor": {"pid": stack.supervisor.pid} if stack.supervisor else None,
        "parts": [
            {
                "name": part.name,
                "pid": part.pid,
                "state": part.state.value,
                "since": part.since,
                "restarts": part.restarts,
                "error": part.error,
            }
            for part in stack.parts
        ],
    }


def logs(
    part: Annotated[str | None, typer.Argument(help="One part; without it, all.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what comes.")] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="Last lines of each part.")] = 50,
    raw: Annotated[bool, typer.Option("--raw", help="JSON lines as they were written.")] = False,
    home: options.Home = options.DEFAULT_HOME,
) -> None:
    """Show what the parts have logged."""
    where = Home(home)
    files = {file.stem: file for file in sorted(where.logs.glob("*.log"))}
    if part is not None and part not in files:
        raise errors.NotFound(f"there is no log of {part} in {where.logs} (there are: {', '.join(files) or 'none'})")
    chosen = {part: files[part]} if part is not None else files
    followers = {name: logfiles.Follower(file) for name, file in chosen.items()}
    for name, file in chosen.items():
        for text in logfiles.tail(file, lines):
            _log_line(name if len(chosen) > 1 else "", text, raw=raw)
    while follow:
        time.sleep(FOLLOW_POLL_S)
        for name, follower in followers.items():
            for text in follower.new_lines():
                _log_line(name if len(chosen) > 1 else "", text, raw=raw)


def _log_line(name: str, text: str, *, raw: bool) -> None:
    shown = text if raw else logfiles.readable(text)
    output.line(f"{name:<14} {shown}" if name else shown)
