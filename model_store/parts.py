"""How an object is cut into parts, and the back-off between tries: shared by upload and download."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

Progress = Callable[[int, int], None]
"""Called with the bytes done so far (resumed ones included) and the total, from the caller's own thread."""

MAX_PARTS = 10_000
"""S3's limit for a multipart upload."""

BACKOFF_FIRST_S = 0.2
BACKOFF_MAX_S = 5.0


@dataclass(frozen=True, kw_only=True)
class Plan:
    """``size`` bytes cut into equal parts, the last one shorter."""

    size: int
    part_bytes: int

    @classmethod
    def for_size(cls, size: int, *, part_bytes: int) -> Plan:
        """A plan within :data:`MAX_PARTS`: the wished part size is doubled until it fits."""
        while size > part_bytes * MAX_PARTS:
            part_bytes *= 2
        return cls(size=size, part_bytes=part_bytes)

    @property
    def count(self) -> int:
        return -(-self.size // self.part_bytes)

    def span(self, index: int) -> tuple[int, int]:
        """Offsets of the part's first byte and of the byte after its last."""
        start = index * self.part_bytes
        return start, min(start + self.part_bytes, self.size)

    def length(self, index: int) -> int:
        start, end = self.span(index)
        return end - start


def backoff_s(failures: int) -> float:
    """Seconds to wait after the n-th failure in a row: 0.2, 0.4, 0.8 … at most 5."""
    return min(BACKOFF_MAX_S, BACKOFF_FIRST_S * 2 ** max(0, failures - 1))
