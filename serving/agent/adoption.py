"""Taking over server processes that outlived the agent that started them.

An agent may be killed at any moment; its processes keep serving. The next agent must not start them a second time,
must not interrupt them, and must not leave behind what no longer works.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from serving.agent import copies, replay
from serving.agent.executor import Executor, stop
from serving.domain import wire
from serving.torchserve import errors, launch, record

log = logging.getLogger(__name__)


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
    await asyncio.gather(*(_decide(executor, found) for found in remains))


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


async def _decide(executor: Executor, found: Found) -> None:
    named = {"model": found.version.model, "version": found.version.version, "pid": found.process.identity.pid}
    client = executor.client_of(found.process)
    try:
        described = await client.describe()
    except errors.ServerError as error:
        log.warning("a server process runs but does not answer, so it is ended: %s", error, extra=named)
        await stop(found.process, graceful=False)
        return
    # Without a worker it may be on its way back; the machine gives it the time that any loss of workers gets.
    answers = described.ready > 0 and not await replay.replay(
        client, manifest=found.version.manifest, folder=found.process.layout.model
    )
    executor.adopt(found.version, found.process, answers=answers)
