"""What model code prints, kept apart from what TorchServe reads.

TorchServe reads a worker's standard output line by line, as log lines and as metrics: a handler that prints a
client's text could forge metrics, and one that prints megabytes would stall the worker on a full pipe.
"""

from __future__ import annotations

import io
import sys
import time

MARK = "[handler] "
"""Before every printed line: no line of model code can look like one of TorchServe's."""

WINDOW_S = 60.0
WINDOW_BYTES = 64 * 1024
"""What may be printed in one window; the rest is dropped, and said."""


class BoundedOutput(io.TextIOBase):
    """A text stream that marks lines and drops what is over the limit."""

    def __init__(self, target: io.TextIOBase) -> None:
        self._target = target
        self._line = ""
        self._window_start = time.monotonic()
        self._written = 0
        self._dropped = 0

    def writable(self) -> bool:
        return True

    def write(self, text: str, /) -> int:
        # No more than a window's worth of an unfinished line is kept.
        *lines, rest = (self._line + text[: 2 * WINDOW_BYTES]).split("\n")
        self._line = rest[:WINDOW_BYTES]
        for line in lines:
            self._put(line)
        return len(text)

    def flush(self) -> None:
        if self._line:
            self._put(self._line)
            self._line = ""

    def _put(self, line: str) -> None:
        now = time.monotonic()
        if now - self._window_start >= WINDOW_S:
            if self._dropped:
                self._target.write(f"{MARK}{self._dropped} characters of output were dropped\n")
            self._window_start, self._written, self._dropped = now, 0, 0
        if self._written + len(line) > WINDOW_BYTES:
            if not self._dropped:
                self._target.write(f"{MARK}output over {WINDOW_BYTES} characters in {WINDOW_S:.0f} s is dropped\n")
                self._target.flush()
            self._dropped += len(line)
            return
        self._written += len(line)
        self._target.write(f"{MARK}{line}\n")
        self._target.flush()


def bound() -> None:
    """Send what this process prints through :class:`BoundedOutput`. TorchServe's own logging keeps its stream."""
    if not isinstance(sys.stdout, BoundedOutput):
        bounded = BoundedOutput(sys.stdout)  # type: ignore[arg-type]
        sys.stdout = sys.stderr = bounded
