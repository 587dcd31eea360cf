"""JSON lines on standard error: one shape for every part, so that one query finds a request everywhere."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


class JsonFormatter(logging.Formatter):
    """Formats a record as one JSON object; ``extra=`` fields become fields of the object."""

    def __init__(self, *, part: str) -> None:
        super().__init__()
        self._part = part

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "part": self._part,
            "logger": record.name,
            "message": record.getMessage(),
        }
        entry |= {key: value for key, value in vars(record).items() if key not in _STANDARD}
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str, ensure_ascii=False)


def configure(*, part: str, level: str = "info") -> None:
    """Send all logging of this process to standard error as JSON lines.

    Args:
        part: the name under which this process appears in every line (``agent``, ``control-plane`` …).
        level: lowest level that is written.
    """
    stream = logging.StreamHandler(sys.stderr)
    stream.setFormatter(JsonFormatter(part=part))
    logging.basicConfig(level=level.upper(), handlers=[stream], force=True)
    # One line per request of our own long polls says nothing.
    logging.getLogger("httpx").setLevel(logging.WARNING)
    logging.getLogger("httpcore").setLevel(logging.WARNING)
