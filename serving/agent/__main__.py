"""The agent as a process: ``python -m serving.agent``, configured by its environment (docs/agent.md)."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import Callable

import filelock
import httpx
import psutil

from model_store.cache import Cache
from model_store.errors import ModelStoreError
from model_store.settings import Settings as StoreSettings
from model_store.store import Store
from serving import logs
from serving.agent import adoption, control, errors, events, http
from serving.agent.copies import Copies, StoreCopies
from serving.agent.executor import Executor
from serving.agent.machine import Machine
from serving.agent.settings import Settings

log = logging.getLogger("serving.agent")

FINAL_REPORT_S = 3.0
"""Bound on telling the control plane that nothing is left here."""


def main() -> int:
    """Run until asked to end; returns the exit code."""
    logs.configure(part="agent")
    for chatty in ("botocore", "boto3", "uvicorn", "filelock"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    try:
        settings = Settings.from_env()
        settings.servers.mkdir(parents=True, exist_ok=True)
        with _only_one(settings):
            asyncio.run(run(settings, store_copies(settings)))
    except (errors.AgentError, ModelStoreError, OSError) as error:
        log.error("the agent cannot start: %s", error)
        return 1
    return 0


def store_copies(settings: Settings) -> StoreCopies:
    """Copies out of the store that the environment names.

    Raises:
        ModelStoreError: the store's settings are missing or contradict themselves.
    """
    store = Store(StoreSettings.from_env())
    return StoreCopies(servers=settings.servers, cache=Cache(settings.cache, settings.cache_limit_bytes), store=store)


def _only_one(settings: Settings) -> filelock.BaseFileLock:
    lock = filelock.FileLock(settings.home / "agent.lock")
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout as error:
        raise errors.HomeInUse(
            f"another agent works in {settings.home}; stop it first, or set another SLIPWAY_AGENT_HOME"
        ) from error
    return lock


async def run(settings: Settings, copies: Copies) -> None:
    """The agent's whole life: adopt, serve, drain."""
    listener = http.listen(settings.host, settings.port)
    url = f"http://{settings.advertise_host}:{listener.getsockname()[1]}"
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=32)
    async with httpx.AsyncClient(limits=limits, trust_env=False) as client:
        machine = Machine(drain_timeout_s=settings.drain_timeout_s)
        executor: Executor
        reporter = control.Reporter(
            settings=settings,
            machine=machine,
            http=client,
            submit=lambda event: executor.submit(event),
            agent_url=url,
            memory_bytes=psutil.virtual_memory().total,
        )
        executor = Executor(machine=machine, settings=settings, copies=copies, http=client, on_change=reporter.changed)
        await adoption.adopt(executor, settings.servers)
        known = control.last_assignment(settings)
        if known is not None:
            executor.submit(events.Assigned(assignment=known))
        subscriber = control.Subscriber(
            settings=settings,
            http=client,
            submit=executor.submit,
            generation=known.generation if known else -1,
        )
        web = http.server(http.Api(executor=executor, reporter=reporter, pool=settings.pool).app)
        helpers = [
            asyncio.create_task(reporter.run(), name="reporter"),
            asyncio.create_task(subscriber.run(), name="subscriber"),
            asyncio.create_task(web.serve(sockets=[listener]), name="web"),
        ]
        _on_signals(executor.submit)
        log.info("the agent of replica %s in pool %s runs at %s", settings.replica, settings.pool, url)
        await _until_first(asyncio.create_task(executor.run(), name="executor"), helpers)
        await _farewell(reporter)


async def _until_first(executor: asyncio.Task[None], helpers: list[asyncio.Task[None]]) -> None:
    """Wait for the executor. A helper that ends before it is a fault: the next agent does better than half of one."""
    try:
        done, _ = await asyncio.wait([executor, *helpers], return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
        if executor not in done:
            raise errors.EndedEarly(f"{', '.join(task.get_name() for task in done)} of the agent ended too early")
    finally:
        for task in (executor, *helpers):
            task.cancel()


async def _farewell(reporter: control.Reporter) -> None:
    try:
        await asyncio.wait_for(reporter.report(), FINAL_REPORT_S)
    except (httpx.HTTPError, ValueError, TimeoutError) as error:
        log.warning("the control plane could not be told that this replica ends: %s", error)


def _on_signals(submit: Callable[[events.Event], None]) -> None:
    asked = False

    def end() -> None:
        nonlocal asked
        submit(events.ShutdownRequested(at_once=asked))
        asked = True

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end)


if __name__ == "__main__":
    sys.exit(main())
