"""Run an archive's golden inputs through its handler, in this process: ``python -m handlers.replay FOLDER``.

``slipway push`` does so before it packs: a model that does not answer its own golden inputs is not published, and what
it answers is what every replica will be held to.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import logging
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from handlers import archive, errors, loading, runtime
from handlers.base import Handler

FRAMEWORKS = ("torch", "torchvision", "transformers", "torchserve", "numpy")


def replay(folder: Path) -> list[dict[str, Any]]:
    """Answer every golden input of an unpacked archive on the CPU.

    Returns:
        ``{"file", "answer"}`` for each, the answer as decoded JSON (or text).

    Raises:
        LoadError: the model does not load, or a golden input is not answered with 200.
    """
    described = archive.read(folder)
    archive.check_requirements(described.requirements)
    handler = loading.native_handler(described)
    if isinstance(handler, Handler):
        handler.load(runtime.load_context(described, device="cpu"))
        worker = runtime.NativeWorker(handler, described)
        return [
            {"file": name, "answer": _checked(name, response.status, response.body)}
            for name, item in runtime.golden_items(described)
            for response in worker.answer([item])
        ]
    return _replay_torchserve(folder, described)


def _replay_torchserve(folder: Path, described: archive.Archive) -> list[dict[str, Any]]:
    """A TorchServe handler needs TorchServe's own context around each input."""
    from ts.context import Context, RequestProcessor  # pyright: ignore

    manifest = json.loads((folder / "MAR-INF" / "MANIFEST.json").read_text(encoding="utf-8"))
    metrics = SimpleNamespace(**{name: lambda *_, **__: None for name in ("add_time", "add_counter", "add_metric")})
    context: Any = Context(manifest["model"]["modelName"], str(folder), manifest, 1, None, "0.12.0", True, metrics, {})
    worker = runtime.load(folder, context)
    answers: list[dict[str, Any]] = []
    for name, item in runtime.golden_items(described):
        processor = RequestProcessor({"content-type": item.content_type})
        context.request_processor, context.request_ids = [processor], {0: "golden"}
        (output,) = worker.handle([dict(item.parts)], context)
        status = processor.get_response_status_code()
        body = output if isinstance(output, (bytes, bytearray)) else str(output).encode()
        answers.append({"file": name, "answer": _checked(name, status, bytes(body))})
    return answers


def _checked(name: str, status: int, body: bytes) -> Any:
    if status != 200:
        raise errors.LoadError(f"golden input {name} is answered {status}: {body.decode('utf-8', 'replace')}")
    try:
        return json.loads(body)
    except ValueError:
        return body.decode("utf-8", "replace")


def versions() -> dict[str, str]:
    """Installed versions of what an answer may depend on."""
    found: dict[str, str] = {}
    for name in FRAMEWORKS:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m handlers.replay", description="Replay an archive's golden inputs.")
    parser.add_argument("folder", type=Path, help="the unpacked archive")
    parser.add_argument("--output", type=Path, required=True, help="JSON file for answers and framework versions")
    given = parser.parse_args(arguments)
    logging.basicConfig(stream=sys.stderr, level=logging.ERROR, format="%(message)s")
    try:
        outputs = replay(given.folder)
    except errors.LoadError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    except (Exception, SystemExit) as error:
        import traceback

        traceback.print_exc()
        sys.stderr.write(f"the model cannot be loaded: {type(error).__name__}: {error}\n")
        return 1
    given.output.write_text(json.dumps({"outputs": outputs, "frameworks": versions()}), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
