"""What model code prints and logs, kept apart from what TorchServe reads.

TorchServe reads a worker's output line by line, as log lines and as metrics: a handler that prints a client's text
could forge metrics, and one that prints megabytes would hold up its own batch.
"""

from __future__ import annotations

import io
import logging
import sys
import threading
import time
from pathlib import Path
from typing import Any, TextIO, cast

MARK = "[handler] "
"""Before every line: no line of model code can look like one of TorchServe's."""

WINDOW_S = 60.0
WINDOW_CHARACTERS = 64 * 1024
"""What may be written in one window; the rest is dropped, and said."""


class BoundedOutput(io.TextIOBase):
    """A text stream that marks lines and drops what is over the limit."""

    def __init__(self, target: TextIO) -> None:
        self._target = target
        self._lock = threading.Lock()
        self._line = ""
        self._window_start = time.monotonic()
        self._written = 0
        self._dropped = 0

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        """The target's, for child processes; what they write is not bounded."""
        return self._target.fileno()

    @property
    def encoding(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        return "utf-8"

    @property
    def buffer(self) -> _Bytes:
        """A stream of bytes with the same bounds."""
        return _Bytes(self)

    def write(self, text: str, /) -> int:
        with self._lock:
            # No more than a window's worth of an unfinished line is kept.
            *lines, rest = (self._line + text[: 2 * WINDOW_CHARACTERS]).split("\n")
            self._dropped += max(0, len(text) - 2 * WINDOW_CHARACTERS) + max(0, len(rest) - WINDOW_CHARACTERS)
            self._line = rest[:WINDOW_CHARACTERS]
            for line in lines:
                self._put(line)
        return len(text)

    def flush(self) -> None:
        with self._lock:
            if self._line:
                self._put(self._line)
                self._line = ""

    def _put(self, line: str) -> None:
        now = time.monotonic()
        if now - self._window_start >= WINDOW_S:
            if self._dropped:
                self._target.write(f"{MARK}{self._dropped} characters of output were dropped\n")
            self._window_start, self._written, self._dropped = now, 0, 0
        if self._written + len(line) > WINDOW_CHARACTERS:
            if self._written <= WINDOW_CHARACTERS:
                self._target.write(f"{MARK}output over {WINDOW_CHARACTERS} characters in {WINDOW_S:.0f} s is dropped\n")
                self._target.flush()
                self._written = WINDOW_CHARACTERS + 1
            self._dropped += len(line)
            return
        self._written += len(line) + 1
        # A carriage return ends a line for TorchServe, too.
        self._target.write(MARK + line.replace("\r", f"\n{MARK}") + "\n")
        self._target.flush()


class _Bytes(io.RawIOBase):
    def __init__(self, text: BoundedOutput) -> None:
        self._text = text

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        self._text.write(bytes(data).decode("utf-8", "replace"))
        return len(data)


class Divert(logging.Filter):
    """Lets a log handler write TorchServe's own records only; others go through a bounded stream.

    TorchServe logs to standard output with nothing but the message, and emits its metrics that way.
    """

    def __init__(self, bounded: BoundedOutput, *, own: Path, formatter: logging.Handler) -> None:
        super().__init__()
        self._bounded = bounded
        self._own = f"{own}/"
        self._formatter = formatter

    def filter(self, record: logging.LogRecord) -> bool:
        if record.pathname.startswith(self._own):
            # One line for every batch, which tells nothing.
            return not (isinstance(record.msg, str) and record.msg.startswith("Backend received inference"))
        self._bounded.write(f"{self._formatter.format(record)}\n")
        return False


def bound() -> None:
    """Send what this process prints and logs through :class:`BoundedOutput`, TorchServe's own records excepted."""
    if isinstance(sys.stdout, BoundedOutput):
        return
    target = cast("TextIO", sys.stdout)
    sys.stdout = sys.stderr = BoundedOutput(target)
    # Logging has a limit of its own: a flood of prints must not hide an error.
    logged = BoundedOutput(target)
    own = _torchserve()
    for handler in logging.getLogger().handlers:
        if own is not None and isinstance(handler, logging.StreamHandler) and handler.stream is target:
            handler.addFilter(Divert(logged, own=own, formatter=handler))


def _torchserve() -> Path | None:
    module = sys.modules.get("ts")
    return Path(module.__file__).parent if module is not None and module.__file__ else None
