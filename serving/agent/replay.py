"""Golden replay: the proof that a replica answers as the publisher's machine did.

``/ping`` says Healthy with no model at all; a worker says READY with the wrong weights. Only an answer proves one.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, Protocol

from model_store import golden
from model_store.manifest import GoldenInput, Manifest
from serving.torchserve import client, errors

PROBLEM_CHARACTERS = 2_000
"""Bound of what is reported of one wrong answer."""


class Predictor(Protocol):
    """Whatever sends one request to a server process."""

    async def predict(self, body: bytes, *, content_type: str, timeout_s: float) -> client.Answer: ...


async def replay(predictor: Predictor, *, manifest: Manifest, folder: Path) -> list[str]:
    """Send every golden input to a server process and compare.

    Inputs are sent one after the other: the process may be serving already, and a warm-up must not crowd out clients.

    Args:
        predictor: the process.
        manifest: what was published; inputs without an expected answer must be answered with 200.
        folder: the private copy of the archive.

    Returns:
        What was wrong, one entry for each input; empty when all is well.
    """
    expected = {output.file: output for output in manifest.golden}
    problems: list[str] = []
    for given in manifest.config.golden:
        problem = await _one(predictor, given, expected.get(given.file), manifest, folder)
        if problem:
            problems.append(f"golden input {given.file}: {problem}"[:PROBLEM_CHARACTERS])
    return problems


async def _one(predictor: Predictor, given: GoldenInput, wanted: Any, manifest: Manifest, folder: Path) -> str | None:
    try:
        body = await asyncio.to_thread(locate(folder, given.file).read_bytes)
        answer = await predictor.predict(
            body, content_type=given.content_type, timeout_s=float(manifest.serving.response_timeout_s)
        )
    except OSError as error:
        return f"cannot be read from the archive: {error}"
    except errors.ServerError as error:
        return str(error)
    if answer.status != 200:
        return f"answered {answer.status}: {answer.body.decode('utf-8', errors='replace')}"
    if wanted is None:
        return None
    differences = golden.compare(wanted.expected, decode(answer.body), wanted.tolerance)
    return "; ".join(differences) or None


def locate(folder: Path, file: str) -> Path:
    """Where a golden input lies: below ``golden/``, whether its name says so or not."""
    inside = folder / "golden" / file
    return inside if inside.exists() else folder / file


def decode(body: bytes) -> Any:
    """An answer as JSON; text that is no JSON stays text."""
    try:
        return json.loads(body)
    except ValueError:
        return body.decode("utf-8", errors="replace")
