"""The task that keeps reconciling: at once when there is news, and every second in any case."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from serving.db import errors
from serving.rollout import board, reconciler

TICK_S = 1.0
"""Time passes too: windows close, heartbeats go stale, other control planes write."""

HOUSEKEEPING_EVERY_S = 60.0

_log = logging.getLogger(__name__)


class Controller:
    """Runs on the event loop; the database work is done in a thread."""

    def __init__(
        self,
        *,
        reconciler: reconciler.Reconciler,
        board: board.Board,
        observe: Callable[[float, bool], None] = lambda seconds, succeeded: None,
    ) -> None:
        self._reconciler = reconciler
        self._board = board
        self._observe = observe
        self._loop: asyncio.AbstractEventLoop | None = None
        self._news = asyncio.Event()
        self._next_housekeeping = 0.0
        self._was_available = True

    def wake(self) -> None:
        """Reconcile now; callable from any thread."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._news.set)

    async def run(self) -> None:
        """Reconcile until cancelled. No failure ends it: the next tick tries again."""
        self._loop = asyncio.get_running_loop()
        while True:
            self._news.clear()
            await self.reconcile()
            try:
                async with asyncio.timeout(TICK_S):
                    await self._news.wait()
            except TimeoutError:
                pass

    async def reconcile(self) -> None:
        """Reconcile once; a failure is logged, and tried again by :meth:`run`."""
        began = time.perf_counter()
        try:
            snapshot = await asyncio.to_thread(self._work)
        except errors.DatabaseUnavailable as error:
            if self._was_available:
                _log.warning("reconciling pauses until the database answers again", extra={"error": error.detail})
            self._was_available = False
        except Exception:
            _log.exception("reconciling failed; it is tried again")
        else:
            if not self._was_available:
                _log.info("the database answers again")
            self._was_available = True
            self._board.publish(snapshot)
            self._observe(time.perf_counter() - began, True)
            return
        self._observe(time.perf_counter() - began, False)

    def _work(self) -> board.Snapshot:
        snapshot = self._reconciler.run()
        if time.monotonic() >= self._next_housekeeping:
            self._reconciler.housekeeping()
            self._next_housekeeping = time.monotonic() + HOUSEKEEPING_EVERY_S
        return snapshot
