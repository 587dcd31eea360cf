"""Logs of parts: files that the parts write themselves, kept within bounds by the supervisor.

A pipe would tie a part's life to the supervisor's: with nobody reading, it blocks or breaks.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

MAX_BYTES = 16 * 1024 * 1024
"""Of one log; as much again is kept of what came before."""

TAIL_BYTES = 256 * 1024


def rotate(log: Path, *, max_bytes: int = MAX_BYTES) -> bool:
    """Put what a log holds aside once it is too large; what lay there is dropped.

    The file is emptied in place, since its writer keeps it open for appending: lines that come between copy and cut
    are lost, which a debug log may.
    """
    try:
        if log.stat().st_size <= max_bytes:
            return False
        with log.open("rb") as source, log.with_name(log.name + ".1").open("wb") as kept:
            source.seek(-max_bytes, os.SEEK_END)
            shutil.copyfileobj(source, kept)
        os.truncate(log, 0)
    except OSError:
        return False
    return True


def tail(log: Path, lines: int) -> list[str]:
    """The last lines; fewer than asked for when they are longer than :data:`TAIL_BYTES`."""
    try:
        with log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - TAIL_BYTES))
            found = file.read().decode(errors="replace").splitlines()
    except OSError:
        return []
    return found[-lines:] if lines else []


class Follower:
    """Gives the lines that were added to a log since the last look, rotated or not."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._position = log.stat().st_size if log.exists() else 0
        self._rest = b""

    def new_lines(self) -> Iterator[str]:
        try:
            with self._log.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                if size < self._position:
                    self._position, self._rest = 0, b""
                file.seek(self._position)
                read = file.read(TAIL_BYTES)
        except OSError:
            return
        self._position += len(read)
        *complete, self._rest = (self._rest + read).split(b"\n")
        for line in complete:
            yield line.decode(errors="replace")


def readable(line: str) -> str:
    """One line for a person: our JSON as time, level and message, anything else as it is."""
    try:
        entry = json.loads(line)
        text = f"{entry.pop('time')} {entry.pop('level'):<7} {entry.pop('message')}"
    except (ValueError, KeyError, TypeError, AttributeError):
        return line
    traceback = entry.pop("traceback", None)
    for name in ("part", "logger"):
        entry.pop(name, None)
    details = " ".join(f"{name}={value}" for name, value in entry.items())
    return text + (f" ({details})" if details else "") + (f"\n{traceback}" if traceback else "")
