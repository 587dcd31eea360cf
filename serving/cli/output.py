"""What commands print: tables for people, JSON for scripts. With ``--output json`` nothing else goes to stdout."""

from __future__ import annotations

import json
import sys
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.table import Table

from model_store.parts import Progress as Callback

PROSE = ("DESCRIPTION", "METRICS", "ERROR", "WHY", "")
"""Columns that are folded where the terminal is narrow; the others stay whole, to be copied."""

PIPE_WIDTH = 200


class Output(StrEnum):
    TABLE = "table"
    JSON = "json"


def out() -> Console:
    """Standard output. Made anew each time: tests and shells exchange ``sys.stdout``."""
    return Console(highlight=False, soft_wrap=True)


def err() -> Console:
    """Standard error: progress, warnings and errors."""
    return Console(stderr=True, highlight=False, soft_wrap=True)


def json_document(document: Any) -> None:
    """Print one JSON document on a line of its own: indented for a terminal, compact for a pipe."""
    indent = 2 if sys.stdout.isatty() else None
    sys.stdout.write(json.dumps(document, indent=indent, ensure_ascii=False, default=str) + "\n")
    sys.stdout.flush()


def line(text: str) -> None:
    """Print one line as it is: no markup, no wrapping."""
    out().print(text, markup=False)


def note(text: str) -> None:
    """Say something beside the result."""
    err().print(text, markup=False)


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    made = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        made.add_column(column, overflow="fold", no_wrap=column not in PROSE)
    for row in rows:
        made.add_row(*("-" if cell is None or cell == "" else str(cell) for cell in row))
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console = Console(highlight=False, markup=False, width=PIPE_WIDTH)
    console.print(made)


@contextmanager
def transfer(what: str) -> Generator[Callback]:
    """A bar for bytes that go to or come from the store; nothing where nobody looks."""
    console = err()
    if not console.is_terminal:
        yield lambda _done, _total: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as progress:
        task = progress.add_task(what, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


class Status:
    """A line that says what is going on: it moves on a terminal; elsewhere each news is a line."""

    def __init__(self, console: Console, spinner: Any) -> None:
        self._console = console
        self._spinner = spinner
        self._last = ""

    def update(self, text: str) -> None:
        if text == self._last:
            return
        self._last = text
        if self._spinner is not None:
            self._spinner.update(_escaped(text))
        else:
            self._console.print(text, markup=False)

    def note(self, text: str) -> None:
        """A line that stays."""
        self._console.print(text, markup=False)


@contextmanager
def status(text: str) -> Generator[Status]:
    """Say what is going on while the block runs, on standard error."""
    console = err()
    if not console.is_terminal:
        shown = Status(console, None)
        shown.update(text)
        yield shown
        return
    with console.status(_escaped(text)) as spinner:
        yield Status(console, spinner)


def _escaped(text: str) -> str:
    return text.replace("[", "\\[")


def size(count: int) -> str:
    """Bytes for people."""
    value = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000 or unit == "GB":
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    raise AssertionError("unreachable")


def ago(when: str | datetime | None) -> str:
    """How long ago something was."""
    if not when:
        return ""
    moment = datetime.fromisoformat(when) if isinstance(when, str) else when
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    seconds = max(0, int((datetime.now(UTC) - moment).total_seconds()))
    for length, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= length:
            return f"{seconds // length} {unit} ago"
    return f"{seconds} s ago"
