"""Keeps the parts of a stack running: started in order, restarted when they die, stopped in order.

One task for each part does all about it, so a part's state has one writer. What a part is, and what "ready" means for
it, stands in its declaration (:mod:`serving.local.parts`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from serving.local import errors, logfiles
from serving.local.home import Part as Report
from serving.local.home import PartState
from serving.local.parts import Part, stop_order

log = logging.getLogger(__name__)

POLL_S = 0.1
"""Between two probes of a part that starts."""

FIRST_BACK_OFF_S = 0.5
MOST_BACK_OFF_S = 30.0
STABLE_S = 60.0
"""A part that ran this long has recovered: the next loss counts as the first."""

CRASH_LOOP = 5
"""Losses in a row from which a part is said to be crash-looping."""

START_TRIES = 2
"""How often a part may end while the stack starts: a port may have been taken in between, a fault stays a fault."""

HOUSEKEEPING_S = 10.0
TAIL_LINES = 20


def back_off_s(losses: int) -> float:
    """Pause before the restart after the n-th loss in a row: 0.5 s, 1 s, 2 s … at most 30 s."""
    return min(MOST_BACK_OFF_S, FIRST_BACK_OFF_S * 2 ** max(0, losses - 1))


class Supervisor:
    """Runs parts until told to stop.

    Args:
        on_change: called in the event loop whenever a part's report has changed.
    """

    def __init__(self, parts: Sequence[Part], *, on_change: Callable[[Report], None] = lambda _: None) -> None:
        self._parts = list(parts)
        self._on_change = on_change
        self._reports = {part.name: Report(name=part.name) for part in parts}
        self._ready = {part.name: asyncio.Event() for part in parts}
        self._failed: asyncio.Future[errors.PartFailed] = asyncio.get_running_loop().create_future()
        self._processes: dict[str, asyncio.subprocess.Process] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._housekeeping: asyncio.Task[None] | None = None
        self._starting = True

    @property
    def reports(self) -> list[Report]:
        return [self._reports[part.name] for part in self._parts]

    async def start(self) -> None:
        """Start every part as soon as those that it needs are ready; return once all are.

        Raises:
            PartFailed: one did not become ready. Nothing is stopped: call :meth:`stop`.
        """
        self._housekeeping = asyncio.create_task(self._keep_house())
        self._tasks = {part.name: asyncio.create_task(self._run(part)) for part in self._parts}
        everything = asyncio.gather(*(event.wait() for event in self._ready.values()))
        try:
            await asyncio.wait([everything, self._failed, *self._tasks.values()], return_when=asyncio.FIRST_COMPLETED)
        finally:
            done = everything.done()
            everything.cancel()
        if self._failed.done():
            raise self._failed.result()
        for task in self._tasks.values():
            if task.done():
                task.result()
        assert done
        self._starting = False

    async def stop(self) -> None:
        """Stop the parts in their order, each within its bound. Safe to call at any time, and twice."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        for part in stop_order(self._parts):
            await self._stop(part)
        if self._housekeeping is not None:
            self._housekeeping.cancel()
            await asyncio.gather(self._housekeeping, return_exceptions=True)

    # --- one part ------------------------------------------------------------------------------------------------

    async def _run(self, part: Part) -> None:
        for name in part.after:
            await self._ready[name].wait()
        losses = 0
        while True:
            started = time.monotonic()
            process = await self._spawn(part)
            if process is not None and await self._until_ready(part, process):
                self._ready[part.name].set()
                self._report(part, state=PartState.READY, error=None)
                await process.wait()
            self._processes.pop(part.name, None)
            losses = 1 if time.monotonic() - started >= STABLE_S else losses + 1
            await self._lost(part, process, losses)

    async def _spawn(self, part: Part) -> asyncio.subprocess.Process | None:
        self._report(part, state=PartState.STARTING)
        try:
            if part.prepare is not None:
                await asyncio.to_thread(part.prepare)
            with part.log.open("ab") as output:
                process = await asyncio.create_subprocess_exec(
                    *part.command,
                    env=dict(part.environment),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    # Ctrl-C in the terminal is the supervisor's alone: it knows the order.
                    start_new_session=True,
                )
        except OSError as error:
            self._report(part, error=f"cannot be started: {error}")
            return None
        self._processes[part.name] = process
        self._report(part, pid=process.pid)
        return process

    async def _until_ready(self, part: Part, process: asyncio.subprocess.Process) -> bool:
        """Whether it became ready; if not, it has ended."""
        deadline = time.monotonic() + part.start_timeout_s
        while process.returncode is None:
            missing = await part.probe()
            if missing is None:
                # The probe may have been answered by somebody else, while ours is just ending for that reason.
                await asyncio.sleep(0)
                return process.returncode is None
            self._report(part, error=missing)
            if time.monotonic() >= deadline:
                self._fail(part, f"was not ready within {part.start_timeout_s:g} s ({missing})")
                await self._end(part, process)
                return False
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), POLL_S)
        return False

    async def _lost(self, part: Part, process: asyncio.subprocess.Process | None, losses: int) -> None:
        report = self._reports[part.name]
        how = _ending(process.returncode) if process is not None else report.error or "cannot be started"
        if process is None or losses >= START_TRIES:
            self._fail(part, how)
        pause_s = back_off_s(losses)
        looping = losses >= CRASH_LOOP
        state = PartState.CRASH_LOOPING if looping else PartState.RESTARTING
        last = next(iter(logfiles.tail(part.log, 1)), "")
        error = f"{how}; last line of its log: {logfiles.readable(last)[:500]}" if last else how
        self._report(part, state=state, pid=None, restarts=report.restarts + 1, error=error)
        counted = f"crash-looping, {losses} losses in a row" if looping else "restarting"
        log.warning("%s %s; %s in %g s", part.name, how, counted, pause_s)
        await asyncio.sleep(pause_s)

    async def _stop(self, part: Part) -> None:
        process = self._processes.pop(part.name, None)
        if process is not None and process.returncode is None:
            self._report(part, state=PartState.STOPPING, error=None)
            if part.drain is not None:
                await part.drain()
            await self._end(part, process)
        if part.clean is not None:
            await asyncio.to_thread(part.clean)
        self._report(part, state=PartState.STOPPED, pid=None, error=None)

    async def _end(self, part: Part, process: asyncio.subprocess.Process) -> None:
        for _ in range(part.signals):
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), POLL_S)
        try:
            await asyncio.wait_for(process.wait(), part.stop_timeout_s)
        except TimeoutError:
            log.warning("%s did not end within %g s and is killed", part.name, part.stop_timeout_s)
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    # --- what is told --------------------------------------------------------------------------------------------

    def _report(self, part: Part, **changes: object) -> None:
        before = self._reports[part.name]
        if "state" in changes and changes["state"] is not before.state:
            changes["since"] = datetime.now(UTC)
        after = before.model_copy(update=changes)
        if after != before:
            self._reports[part.name] = after
            self._on_change(after)

    def _fail(self, part: Part, how: str) -> None:
        """While the stack starts, a part that does not come up is the end of it."""
        if self._starting and not self._failed.done():
            tail = [logfiles.readable(line) for line in logfiles.tail(part.log, TAIL_LINES)]
            self._failed.set_result(
                errors.PartFailed(f"{part.name} {how}; its log is {part.log}", part=part.name, log_tail=tail)
            )

    async def _keep_house(self) -> None:
        while True:
            await asyncio.sleep(HOUSEKEEPING_S)
            for part in self._parts:
                if await asyncio.to_thread(logfiles.rotate, part.log):
                    log.info("the log of %s has been rotated", part.name)


def _ending(code: int | None) -> str:
    """An exit status in words."""
    if code is None:
        return "was stopped"
    if code >= 0:
        return f"ended with exit status {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
