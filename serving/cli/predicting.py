"""``predict``: one request to the gateway, over REST or gRPC."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from serving.cli import errors, inference, options, output
from serving.cli.output import Output
from serving.cli.target import Target
from serving.domain import stages

DEFAULT_TIMEOUT_S = 120.0


def register(app: typer.Typer) -> None:
    app.command()(predict)


def predict(
    name: Annotated[str, typer.Argument(help="The model.")],
    file: Annotated[
        Path | None, typer.Argument(help="What to send: an image, text, JSON; - is standard input.")
    ] = None,
    text: Annotated[str | None, typer.Option("--text", help="Send this text.")] = None,
    json: Annotated[str | None, typer.Option("--json", help="Send this JSON document.")] = None,
    content_type: Annotated[str | None, typer.Option("--content-type", help="Of FILE; guessed otherwise.")] = None,
    stage: Annotated[stages.Name | None, typer.Option("--stage", help="Ask a stage other than production.")] = None,
    version: Annotated[int | None, typer.Option("--version", min=1, help="Ask a loaded version.")] = None,
    grpc: Annotated[bool, typer.Option("--grpc", help="Over gRPC instead of REST.")] = False,
    timeout: Annotated[float, typer.Option("--timeout", min=0.001, help="Seconds.")] = DEFAULT_TIMEOUT_S,
    home: options.Home = options.DEFAULT_HOME,
    format: options.Format = Output.TABLE,
) -> None:
    """Send one input to a model and print what it answers."""
    payload = _payload(file, text, json, content_type)
    call = inference.Call(model=name, payload=payload, stage=stage and stage.value, version=version, timeout_s=timeout)
    url = Target.of(home).gateway_url
    started = time.perf_counter()
    answer = (inference.by_grpc if grpc else inference.by_rest)(url, call)
    elapsed_ms = (time.perf_counter() - started) * 1000
    if format is Output.JSON:
        output.json_document({"version": answer.version, "output": answer.output, "ms": round(elapsed_ms, 3)})
        return
    output.note(f"{name} version {answer.version}, {elapsed_ms:.1f} ms")
    _print(answer.output)


def _payload(file: Path | None, text: str | None, json: str | None, content_type: str | None) -> inference.Payload:
    if content_type is not None and not (content_type.isascii() and content_type.isprintable()):
        raise errors.Usage(f"--content-type {content_type!r} cannot be sent; write a media type such as image/png")
    given = [each for each in (file, text, json) if each is not None]
    if len(given) != 1:
        raise errors.Usage(f"give one of FILE, --text and --json; {len(given)} were given")
    if text is not None:
        return inference.Payload(
            body=text.encode(errors="surrogateescape"), content_type=content_type or inference.TEXT
        )
    if json is not None:
        return inference.from_json(json)
    assert file is not None
    try:
        body = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    except OSError as error:
        raise errors.Usage(f"{file} cannot be read: {error.strerror or error}") from error
    return inference.Payload(body=body, content_type=content_type or inference.content_type(file.name, body))


def _print(answer: Any) -> None:
    """Text as it is, a table for labels with scores, JSON for the rest."""
    if isinstance(answer, str):
        output.line(answer)
    elif inference.is_table(answer):
        columns = list(answer[0])
        output.table([name.upper() for name in columns], ([_cell(row[name]) for name in columns] for row in answer))
    else:
        output.json_document(answer)


def _cell(value: object) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str(value)
