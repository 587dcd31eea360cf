"""The capped log of transitions: what happened to a version, in the order in which it happened."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from serving.agent.slots import Phase
from serving.domain.wire import VersionRef

LENGTH = 1_000


@dataclass(frozen=True, kw_only=True)
class Transition:
    """One line of the story."""

    at: float
    """Seconds of the machine's clock."""
    ref: VersionRef
    attempt: int
    before: Phase | None
    after: Phase | None
    """None when the slot was closed."""
    why: str

    def __str__(self) -> str:
        return f"{self.at:10.2f}  {self.ref}#{self.attempt}  {self.before or '-'} → {self.after or '-'}: {self.why}"


class Story:
    """The last transitions, oldest first."""

    def __init__(self) -> None:
        self._lines: deque[Transition] = deque(maxlen=LENGTH)
        self.total = 0

    def add(self, line: Transition) -> None:
        self._lines.append(line)
        self.total += 1

    def since(self, total: int) -> Iterator[Transition]:
        """Lines that were added after ``total`` had been reached; some may have been dropped."""
        new = min(self.total - total, len(self._lines))
        yield from list(self._lines)[len(self._lines) - new :]

    def text(self, ref: VersionRef | None = None) -> str:
        return "\n".join(str(line) for line in self._lines if ref is None or line.ref == ref)
