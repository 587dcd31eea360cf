"""Steady traffic from a thread, and an account of every answer."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType


@dataclass(frozen=True)
class Answer:
    sent_at: float
    answered_at: float
    version: str | None
    error: str | None


class Traffic:
    """Calls ``send`` at a steady rate from several threads until the ``with`` block ends.

    Args:
        send: performs one request and returns the version that answered; raises when the request failed.
        rate: requests a second over all threads; a slow answer delays only its own thread.
        threads: how many requests may be under way at once.
    """

    def __init__(self, send: Callable[[], str | None], *, rate: float, threads: int = 4) -> None:
        self._send = send
        self._interval = threads / rate
        self._stop = threading.Event()
        self._answers: list[Answer] = []
        self._threads = [
            threading.Thread(target=self._loop, args=(index / rate,), daemon=True) for index in range(threads)
        ]

    def __enter__(self) -> Traffic:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(timeout=60)

    def _loop(self, offset: float) -> None:
        due = time.monotonic() + offset
        while not self._stop.wait(max(0.0, due - time.monotonic())):
            sent_at = time.monotonic()
            version: str | None = None
            problem: str | None = None
            try:
                version = self._send()
            except Exception as error:  # every failure is evidence, of whatever kind
                problem = f"{type(error).__name__}: {error}"
            self._answers.append(Answer(sent_at, time.monotonic(), version, problem))
            due = max(due + self._interval, time.monotonic())

    @property
    def answers(self) -> list[Answer]:
        return list(self._answers)

    def failures(self) -> list[str]:
        return [answer.error for answer in self.answers if answer.error is not None]

    def versions(self) -> Counter[str | None]:
        return Counter(answer.version for answer in self.answers if answer.error is None)

    def versions_answered(self, *, sent_after: float, answered_before: float = float("inf")) -> set[str | None]:
        """Which versions answered the requests of a span of ``time.monotonic()``."""
        return {
            answer.version
            for answer in self.answers
            if answer.error is None and answer.sent_at >= sent_after and answer.answered_at <= answered_before
        }
