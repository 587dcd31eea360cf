"""What this process last knew of the world, and a place to wait for news of it.

Long polls of agents and gateways are answered from here, never from the database: a thousand waiting polls cost
nothing, and while the database is away they go on to get the last good answer.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from serving.domain import facts, routing, wire

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The outcome of one reconciliation."""

    facts: facts.Facts
    assignments: Mapping[str, wire.Assignment]
    config: wire.GatewayConfig

    def assignment(self, pool: str) -> wire.Assignment:
        """A pool that nobody has heard of is to hold nothing."""
        return self.assignments.get(pool) or wire.Assignment(pool=pool, generation=0, versions=[])

    def acknowledge(self, report: wire.ReplicaReport) -> wire.ReportAck:
        return wire.ReportAck(
            generation=self.assignment(report.pool).generation,
            routed=routing.routed(report, current=self.config, gateways=self.facts.live_gateways()),
        )

    def is_news_after(self, other: Snapshot | None) -> bool:
        """Whether anybody who waits might see a difference."""
        return (
            other is None
            or self.config.revision != other.config.revision
            or self.facts.rollouts != other.facts.rollouts
            or {pool: known.generation for pool, known in self.assignments.items()}
            != {pool: known.generation for pool, known in other.assignments.items()}
        )


class News:
    """One coming change. Taken before looking at the facts, it cannot be missed between looking and waiting."""

    def __init__(self, event: asyncio.Event) -> None:
        self._event = event

    async def wait(self, *, timeout_s: float) -> bool:
        """Whether the change came within the time."""
        if self._event.is_set():
            return True
        if timeout_s <= 0:
            return False
        try:
            async with asyncio.timeout(timeout_s):
                await self._event.wait()
        except TimeoutError:
            return False
        return True


class Board:
    """Belongs to one event loop: ``publish`` and the waits run on it; ``snapshot`` may be read from any thread."""

    def __init__(self) -> None:
        self.snapshot: Snapshot | None = None
        self.is_closed = False
        self._news = asyncio.Event()

    def publish(self, snapshot: Snapshot) -> None:
        is_news = snapshot.is_news_after(self.snapshot)
        self.snapshot = snapshot
        if is_news:
            self._wake()

    def close(self) -> None:
        """End all waits at once: the process is about to stop."""
        self.is_closed = True
        self._wake()

    def next_news(self) -> News:
        return News(self._news)

    async def wait_for(self, answer: Callable[[Snapshot], T | None], *, timeout_s: float) -> T | None:
        """The first answer that is not ``None``, looked for at every news; ``None`` after the timeout or at the end."""
        deadline = time.monotonic() + timeout_s
        while True:
            news = self.next_news()
            if self.snapshot is not None and (found := answer(self.snapshot)) is not None:
                return found
            if self.is_closed or not await news.wait(timeout_s=deadline - time.monotonic()):
                return None

    def _wake(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()
