"""Carries out what the machine decides, and decides nothing itself."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import httpx

from model_store.errors import ModelStoreError
from serving.agent import events, instructions, replay, threads, watching
from serving.agent.copies import Copies
from serving.agent.machine import Machine
from serving.agent.settings import Settings
from serving.agent.slots import Phase
from serving.domain import wire
from serving.torchserve import client, config, errors, installation, launch, ports, record

log = logging.getLogger(__name__)

TICK_S = 0.25
PULLS_AT_ONCE = 2
TERMINATE_S = 15.0
"""How long Java may take to end after SIGTERM; then its whole session is killed."""
POLL_GONE_S = 0.1


class Executor:
    """The machine's hands: one queue of events in, tasks that act on the world out.

    Args:
        machine: decides.
        copies: brings private copies.
        http: one client for all server processes.
        on_change: called whenever the control plane should be told.
        install: finds TorchServe and Java for a worker's interpreter.
    """

    def __init__(
        self,
        *,
        machine: Machine,
        settings: Settings,
        copies: Copies,
        http: httpx.AsyncClient,
        on_change: Callable[[], None],
        install: Callable[[str], installation.Installation] = installation.find,
    ) -> None:
        self.machine = machine
        self._settings = settings
        self._copies = copies
        self._http = http
        self._on_change = on_change
        self._install = install
        self._events: asyncio.Queue[events.Event] = asyncio.Queue()
        self._tasks: set[asyncio.Task[None]] = set()
        # The process of each attempt, from its launch until it is gone.
        self._processes: dict[int, launch.Process] = {}
        self._watches: dict[int, asyncio.Task[None]] = {}
        # One at a time in a version's folder, in the order in which the machine asked.
        self._folders: defaultdict[Path, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._pulls = asyncio.Semaphore(PULLS_AT_ONCE)
        self._told = 0
        self._swept = False
        self.handled_at = time.monotonic()

    def submit(self, event: events.Event) -> None:
        """Hand an event to the machine; returns at once."""
        self._events.put_nowait(event)

    async def run(self) -> None:
        """Until the machine says Exit."""
        ticking = asyncio.create_task(self._tick())
        try:
            while True:
                event = await self._events.get()
                if not self._handle(event):
                    return
        finally:
            ticking.cancel()
            for task in (*self._tasks, *self._watches.values()):
                task.cancel()

    def client_of(self, process: launch.Process) -> client.Client:
        """Speaks to one server process."""
        identity = process.identity
        return client.Client(
            model=identity.model,
            version=identity.version,
            host=identity.host,
            ports=identity.ports,
            http=self._http,
        )

    def processes(self) -> list[launch.Process]:
        """All that live, as far as is known."""
        return list(self._processes.values())

    def adopt(self, version: wire.AssignedVersion, process: launch.Process, *, answers: bool, loaded: bool) -> None:
        """Take over a process that an earlier agent started; before ``run``, so that the first report knows it.

        Args:
            answers: it answers its golden inputs.
            loaded: its workers have been ready before, so a death is a loss and not a version that cannot load.
        """
        event = events.Adopted(version=version, facts=facts_of(process), answers=answers)
        for instruction in self.machine.handle(event, time.monotonic()):
            if isinstance(instruction, instructions.Watch):
                self._processes[instruction.attempt] = process
                self._watch(instruction, process, loaded=loaded)
        self._tell()

    # --- the loop ------------------------------------------------------------------------------------------------

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            if self._events.empty():
                self.submit(events.Tick())

    def _handle(self, event: events.Event) -> bool:
        self.handled_at = time.monotonic()
        goes_on = True
        for instruction in self.machine.handle(event, self.handled_at):
            match instruction:
                case instructions.Report():
                    self._on_change()
                case instructions.Exit():
                    goes_on = False
                case instructions.ForVersion():
                    self._spawn(self._carry_out(instruction))
                case _:
                    raise TypeError(f"unknown instruction {instruction!r}")
        if isinstance(event, events.Assigned) and not self._swept:
            self._swept = True
            self._spawn(self._sweep([self._copies.root(slot.version) for slot in self.machine.slots]))
        self._tell()
        return goes_on

    async def _sweep(self, keep: list[Path]) -> None:
        """Once what is wanted is known, remove the copies of an earlier agent that nobody wants any more."""
        await asyncio.to_thread(self._copies.sweep, keep)

    def _tell(self) -> None:
        """Write what the machine has done to the log."""
        story = self.machine.transitions
        for line in story.since(self._told):
            bad = line.after is Phase.WAITING or (line.after is Phase.STOPPING and "routed" not in line.why)
            log.log(
                logging.WARNING if bad else logging.INFO,
                "%s → %s: %s",
                line.before or "-",
                line.after or "-",
                line.why,
                extra={"model": line.ref.model, "version": line.ref.version, "attempt": line.attempt},
            )
        self._told = story.total

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a task of the agent failed: %s", error, exc_info=error)

    async def _carry_out(self, instruction: instructions.ForVersion) -> None:
        match instruction:
            case instructions.Pull():
                await self._pull(instruction)
            case instructions.Start():
                await self._start(instruction)
            case instructions.Replay():
                await self._replay(instruction)
            case instructions.Stop():
                await self._stop(instruction)
            case instructions.Discard():
                async with self._folder(instruction):
                    await asyncio.to_thread(self._copies.discard, instruction.version)
            case _:
                raise TypeError(f"unknown instruction {instruction!r}")

    def _folder(self, instruction: instructions.ForVersion) -> asyncio.Lock:
        return self._folders[self._copies.root(instruction.version)]

    # --- one instruction each ------------------------------------------------------------------------------------

    async def _pull(self, wanted: instructions.Pull) -> None:
        try:
            async with self._folder(wanted), self._pulls:
                await threads.run_abandonable(lambda: self._copies.prepare(wanted.version), name=f"pull-{wanted.ref}")
        except Exception as error:
            transient = isinstance(error, ModelStoreError) and error.transient
            if not isinstance(error, ModelStoreError | OSError):
                log.exception("pulling %s failed in a way that was not foreseen", wanted.ref)
            said = str(error) or type(error).__name__
            self.submit(events.PullFailed(ref=wanted.ref, attempt=wanted.attempt, error=said, transient=transient))
        else:
            self.submit(events.Pulled(ref=wanted.ref, attempt=wanted.attempt))

    async def _start(self, wanted: instructions.Start) -> None:
        try:
            async with self._folder(wanted):
                process = await asyncio.to_thread(self._launch, wanted)
        except Exception as error:
            if not isinstance(error, errors.ServerError | OSError):
                log.exception("starting %s failed in a way that was not foreseen", wanted.ref)
            said = str(error) or type(error).__name__
            self.submit(events.StartFailed(ref=wanted.ref, attempt=wanted.attempt, error=said))
            return
        self._processes[wanted.attempt] = process
        self.submit(events.Started(ref=wanted.ref, attempt=wanted.attempt, facts=facts_of(process)))
        self._watch(wanted, process, loaded=False)

    def _launch(self, wanted: instructions.Start) -> launch.Process:
        settings = self._settings
        manifest = wanted.version.manifest
        root = self._copies.root(wanted.version)
        before = record.last_ports(root)
        plan = launch.Plan(
            model=wanted.version.model,
            version=wanted.version.version,
            pool=settings.pool,
            manifest=manifest,
            fitted=config.fit(manifest.serving, cores=settings.cores, models=wanted.models),
            ports=ports.pick(host=settings.bind_host, span=settings.port_range, preferred=before),
            host=settings.bind_host,
            cores=settings.cores,
            gpus=settings.gpus,
            root=root,
        )
        return launch.start(plan, self._install(settings.worker_python))

    def _watch(self, wanted: instructions.ForVersion, process: launch.Process, *, loaded: bool) -> None:
        watch = watching.Watch(
            ref=wanted.ref,
            attempt=wanted.attempt,
            process=process,
            client=self.client_of(process),
            emit=self.submit,
            loaded=loaded,
        )
        task = asyncio.create_task(watch.run())
        self._watches[wanted.attempt] = task
        task.add_done_callback(self._done)

    async def _replay(self, wanted: instructions.Replay) -> None:
        process = self._processes[wanted.attempt]
        problems = await replay.replay(
            self.client_of(process),
            manifest=wanted.version.manifest,
            folder=process.layout.model,
        )
        if problems:
            error = "the golden inputs were not answered as they should be: " + "\n".join(problems)
            self.submit(events.GoldenFailed(ref=wanted.ref, attempt=wanted.attempt, error=error))
        else:
            self.submit(events.GoldenPassed(ref=wanted.ref, attempt=wanted.attempt))

    async def _stop(self, wanted: instructions.Stop) -> None:
        watch = self._watches.pop(wanted.attempt, None)
        if watch is not None:
            watch.cancel()
        process = self._processes.get(wanted.attempt)
        if process is not None:
            await stop(process, graceful=wanted.graceful)
            del self._processes[wanted.attempt]
        self.submit(events.Stopped(ref=wanted.ref, attempt=wanted.attempt))


async def stop(process: launch.Process, *, graceful: bool) -> None:
    """End a process and its family; returns once nobody is left."""
    if graceful:
        process.terminate()
        deadline = time.monotonic() + TERMINATE_S
        while not await asyncio.to_thread(process.gone):
            if time.monotonic() >= deadline:
                break
            await asyncio.sleep(POLL_GONE_S)
    # A process that ignores even this hangs in the kernel; its memory and ports are taken, so nothing may follow it.
    while not await asyncio.to_thread(process.gone):
        await asyncio.to_thread(process.kill)
        await asyncio.sleep(POLL_GONE_S)
    await asyncio.to_thread(process.clean)


def facts_of(process: launch.Process) -> events.Facts:
    """A process as the machine knows it."""
    identity = process.identity
    return events.Facts(
        pid=identity.pid,
        host=identity.host,
        rest_port=identity.ports.rest,
        grpc_port=identity.ports.grpc,
        workers=identity.workers,
        threads=identity.threads,
    )
