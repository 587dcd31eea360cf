"""Looking at one living server process, and saying what was seen."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from serving.agent import events
from serving.domain.wire import VersionRef
from serving.torchserve import client, errors, launch, worker_log

LOADING_INTERVAL_S = 0.5
SERVING_INTERVAL_S = 1.0
MEMORY_INTERVAL_S = 5.0

LAST_WORDS_S = 0.7
"""A worker that says that it dies needs this long to finish its traceback."""

UNREACHABLE_S = 15.0
"""Silence of a process's own API that counts as having no worker."""


@dataclass(kw_only=True)
class Watch:
    """Watches until the process is gone.

    Args:
        loaded: whether all workers have been ready once; before that a single death ends the attempt, since
            TorchServe would restart the worker for a minute and tell nobody why.
    """

    ref: VersionRef
    attempt: int
    process: launch.Process
    client: client.Client
    emit: Callable[[events.Event], None]
    loaded: bool = False
    _seen: set[int] = field(default_factory=set[int])
    _deaths: int = 0
    _last_words: str | None = None
    _answered_at: float = field(default_factory=time.monotonic)
    _measured_at: float = float("-inf")
    _memory_bytes: int = 0
    queued: int = 0

    async def run(self) -> None:
        while True:
            reason = await asyncio.to_thread(self.process.exit_reason)
            if reason is not None:
                self.emit(events.Exited(ref=self.ref, attempt=self.attempt, reason=await self._explain(reason)))
                return
            if not self.loaded and await self._failed_to_load():
                return
            await self._observe()
            await asyncio.sleep(SERVING_INTERVAL_S if self.loaded else LOADING_INTERVAL_S)

    async def _failed_to_load(self) -> bool:
        alive = await asyncio.to_thread(self.process.worker_pids)
        self._seen |= alive
        lines = await asyncio.to_thread(worker_log.tail, self.process.layout.worker_log)
        if not worker_log.died(lines) and len(self._seen) <= self.process.identity.workers:
            return False
        await asyncio.sleep(LAST_WORDS_S)
        self._load_failed(await asyncio.to_thread(self._read_failure))
        return True

    async def _observe(self) -> None:
        try:
            described = await self.client.describe()
        except errors.Unloaded as error:
            said = worker_log.server_failure(worker_log.tail(self.process.layout.server_log))
            self._load_failed(f"{error}; it said: {said or 'nothing'}")
            return
        except errors.ServerError as error:
            if self.loaded and time.monotonic() - self._answered_at >= UNREACHABLE_S:
                self._report(ready=0, words=f"the process's own API has not answered for {UNREACHABLE_S:g} s: {error}")
            return
        self._answered_at = time.monotonic()
        self.queued = described.queued
        pids = {worker.pid for worker in described.workers if worker.pid > 0}
        deaths = len((self._seen | pids) - pids) if self.loaded else 0
        self._seen |= pids
        if deaths > self._deaths or (self.loaded and described.ready == 0):
            self._last_words = await asyncio.to_thread(self._read_failure)
        self._deaths = max(deaths, self._deaths)
        if described.ready >= self.process.identity.workers:
            self.loaded = True
        await self._measure()
        self._report(ready=described.ready, words=self._last_words)

    async def _measure(self) -> None:
        if time.monotonic() - self._measured_at >= MEMORY_INTERVAL_S or not self._memory_bytes:
            self._measured_at = time.monotonic()
            self._memory_bytes = await asyncio.to_thread(self.process.memory_bytes)

    async def _explain(self, reason: str) -> str:
        said = await asyncio.to_thread(worker_log.tail, self.process.layout.output)
        words = "\n".join(line for line in said[-15:] if not line.startswith("WARNING:"))
        return f"{reason}; it said: {words}" if words and not self.loaded else reason

    def _read_failure(self) -> str | None:
        """The worker's own words; without any, those of the server about it (a worker that hung says nothing)."""
        layout = self.process.layout
        said = worker_log.failure(worker_log.tail(layout.worker_log))
        if said:
            return said
        of_server = worker_log.server_failure(worker_log.tail(layout.server_log))
        return f"a worker died or hung and left no word; TorchServe says: {of_server}" if of_server else None

    def _load_failed(self, error: str | None) -> None:
        said = error or f"a worker died before it was ready and left no word; see {self.process.layout.logs}"
        self.emit(events.LoadFailed(ref=self.ref, attempt=self.attempt, error=said))

    def _report(self, *, ready: int, words: str | None) -> None:
        self.emit(
            events.Observed(
                ref=self.ref,
                attempt=self.attempt,
                ready_workers=ready,
                worker_deaths=self._deaths,
                last_words=words,
                queued=self.queued,
                memory_bytes=self._memory_bytes,
            )
        )
