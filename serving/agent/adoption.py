"""Taking over server processes that outlived the agent that started them.

An agent may be killed at any moment; its processes keep serving. The next agent must not start them a second time,
must not interrupt them, and must not leave behind what no longer works.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from serving.agent import copies, replay
from serving.agent.executor import Executor, stop
from serving.domain import wire
from serving.torchserve import client, errors, launch, record, worker_log

log = logging.getLogger(__name__)

PROOF_S = 10.0
"""Bound on proving that a process answers; one that needs longer is adopted as not ready, and proved again later."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """A process that still runs, and the version it was started for."""

    version: wire.AssignedVersion
    process: launch.Process


async def adopt(executor: Executor, servers: Path) -> None:
    """Look through the folders of server processes; take over what answers, end what does not.

    Returns once all is decided, so that the first report already names the adopted ones: a report without them would
    make the gateways drop endpoints that serve.
    """
    remains = await asyncio.to_thread(lambda: list(_look(servers)))
    await asyncio.to_thread(_end_unknown, servers, {found.process.identity.pid for found in remains})
    await asyncio.gather(*(_decide(executor, found) for found in remains))


def end_all(servers: Path) -> int:
    """End every server process of a home whose agent is gone for good.

    Args:
        servers: the folder ``servers`` below the agent's home.

    Returns:
        How many processes there were, Java and workers.
    """
    count = 0
    for found in _look(servers):
        count += found.process.kill()
        found.process.clean()
    return count + _end_unknown(servers, set())


def _look(servers: Path) -> Iterator[Found]:
    for root in sorted(servers.iterdir()) if servers.is_dir() else ():
        identity = record.read(root)
        if identity is None:
            continue
        process = launch.Process(identity)
        version = copies.read_version(root)
        if record.alive(identity) and version is not None and version.manifest.digest == identity.digest:
            yield Found(version=version, process=process)
            continue
        orphans = process.kill()
        process.clean()
        log.warning("the server process in %s is gone; %d left-over workers were ended", root, orphans)


def _end_unknown(servers: Path, known: set[int]) -> int:
    """End Java processes of this home that have no record: their agent was killed between launching and writing."""
    ended = 0
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, ProcessLookupError, PermissionError):
            ours = any(part.startswith(f"-Dlog4j.configurationFile=file://{servers}/") for part in process.cmdline())
            if ours and process.pid not in known:
                log.warning("Java process %d has no record and is ended", process.pid)
                os.killpg(process.pid, signal.SIGKILL)
                ended += 1
    return ended


async def _decide(executor: Executor, found: Found) -> None:
    named = {"model": found.version.model, "version": found.version.version, "pid": found.process.identity.pid}
    speaks = executor.client_of(found.process)
    try:
        described = await speaks.describe()
    except errors.ServerError as error:
        log.warning("a server process runs but does not answer, so it is ended: %s", error, extra=named)
        await stop(found.process, graceful=False)
        return
    # Without a worker it may be on its way back; the machine gives it the time that any loss of workers gets.
    answers = described.ready > 0 and await _answers(speaks, found)
    lines = await asyncio.to_thread(worker_log.tail, found.process.layout.worker_log)
    executor.adopt(found.version, found.process, answers=answers, loaded=answers or worker_log.died(lines))


async def _answers(speaks: client.Client, found: Found) -> bool:
    manifest, folder = found.version.manifest, found.process.layout.model
    try:
        return not await asyncio.wait_for(replay.replay(speaks, manifest=manifest, folder=folder), PROOF_S)
    except TimeoutError:
        return False
