"""Reading why a worker died from its log.

TorchServe restarts a worker that cannot load for as long as it is allowed to and tells nobody why. The reason stands
in the worker's own output, which ``log4j2.xml`` writes as JSON lines.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

TAIL_BYTES = 512 * 1024
"""How much of the log's end is read."""

ERROR_CHARACTERS = 8_000
"""Bound of a reported error; of a longer one the end is kept, where a traceback names its exception."""

DIED = "Backend worker process died."
_TRACEBACK = "Traceback (most recent call last):"
_STARTED = "Torch worker started."
_NOISE = (
    "[PID]",
    "[METRICS]",
    "Backend received",
    "Connection accepted:",
    "Listening on",
    "Python runtime:",
    "Successfully loaded",
    "model_name:",
    "s_name_part0=",
    _STARTED,
    DIED,
)


def tail(path: Path) -> list[str]:
    """The last lines of a log; none when it does not exist yet."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - TAIL_BYTES))
            return file.read().decode("utf-8", errors="replace").splitlines()
    except OSError:
        return []


def died(lines: Iterable[str]) -> bool:
    """Whether a worker said that it gives up."""
    return any(DIED in line for line in lines)


def failure(lines: Iterable[str]) -> str | None:
    """The traceback of the worker that failed first, or failing that the last words of the workers.

    Returns:
        Text as Python printed it; None when the log says nothing.
    """
    by_thread: dict[str, list[str]] = {}
    for line in lines:
        try:
            entry = json.loads(line)
            by_thread.setdefault(str(entry["thread"]), []).append(str(entry["message"]))
        except (ValueError, KeyError, TypeError):
            continue
    traces = [trace for messages in by_thread.values() if (trace := _traceback(messages))]
    if traces:
        return traces[0][-ERROR_CHARACTERS:]
    words = [
        message
        for messages in by_thread.values()
        for message in messages
        if message.strip() and not message.startswith(_NOISE)
    ]
    return "\n".join(words[-20:])[-ERROR_CHARACTERS:] or None


def server_failure(lines: Iterable[str]) -> str | None:
    """The last warnings and errors of the server itself."""
    words: list[str] = []
    for line in lines:
        try:
            entry = json.loads(line)
            trace = [line for line in str(entry.get("traceback", "")).splitlines() if not line.startswith("\tat ")]
            words.append("\n".join(part.strip() for part in (str(entry["message"]), *trace) if part.strip()))
        except (ValueError, KeyError, TypeError):
            continue
    return "\n".join(words[-3:])[-ERROR_CHARACTERS:] or None


def _traceback(messages: list[str]) -> str | None:
    """One worker's first traceback: up to its farewell, or up to the next life of the worker."""
    try:
        begin = messages.index(_TRACEBACK)
    except ValueError:
        return None
    lines: list[str] = []
    for message in messages[begin:]:
        if message in (DIED, _STARTED) or message.startswith("[PID]"):
            break
        lines.append(message)
    return "\n".join(lines).strip()
