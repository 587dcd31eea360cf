"""Talking with the control plane: the assignment comes in, the report goes out.

Neither is needed to go on serving. The last assignment is on disk, so an agent that restarts while the control plane
is away holds what it held before.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
from pydantic import ValidationError

from serving.agent import events
from serving.agent.machine import Machine
from serving.agent.settings import Settings
from serving.agent.slots import BackOff, Slot
from serving.domain import wire
from serving.torchserve import record

log = logging.getLogger(__name__)

HEARTBEAT_S = 5.0
DRAINING_HEARTBEAT_S = 1.0
"""While something waits to be routed away, the answer to each report decides."""
LONG_POLL_S = 25
REQUEST_TIMEOUT_S = 10.0
BACK_OFF = BackOff(first_s=0.5, cap_s=10)
ASSIGNMENT_FILE = "assignment.json"


def last_assignment(settings: Settings) -> wire.Assignment | None:
    """The assignment that an earlier agent of this home was given; None for another pool's."""
    try:
        known = wire.Assignment.model_validate_json((settings.home / ASSIGNMENT_FILE).read_bytes())
    except (OSError, ValidationError):
        return None
    return known if known.pool == settings.pool else None


def keep_assignment(home: Path, assignment: wire.Assignment) -> None:
    record.write_atomically(home / ASSIGNMENT_FILE, assignment.model_dump_json())


class _Reachability:
    """Says once that the control plane is away, and once that it is back."""

    def __init__(self, what: str, chance: random.Random) -> None:
        self._what = what
        self._chance = chance
        self._failures = 0

    def failed(self, error: Exception) -> float:
        """Returns the pause before the next try, in seconds."""
        self._failures += 1
        if self._failures == 1:
            log.warning("%s failed, serving goes on: %s", self._what, error or type(error).__name__)
        return BACK_OFF.delay(self._failures, self._chance)

    def worked(self) -> None:
        if self._failures:
            log.info("%s works again after %d failures", self._what, self._failures)
        self._failures = 0


class Subscriber:
    """Long-polls the pool's assignment."""

    def __init__(
        self,
        *,
        settings: Settings,
        http: httpx.AsyncClient,
        submit: Callable[[events.Event], None],
        generation: int = -1,
        chance: random.Random | None = None,
    ) -> None:
        self._settings = settings
        self._http = http
        self._submit = submit
        self._generation = generation
        self._reach = _Reachability("asking for the assignment", chance or random.Random())

    async def run(self) -> None:
        while True:
            try:
                assignment = await self._ask()
            except (httpx.HTTPError, ValueError) as error:
                await asyncio.sleep(self._reach.failed(error))
                continue
            self._reach.worked()
            if assignment is None or assignment.generation == self._generation:
                continue
            try:
                await asyncio.to_thread(keep_assignment, self._settings.home, assignment)
            except OSError as error:
                log.error("the assignment cannot be kept on disk, a restart would not know it: %s", error)
            self._generation = assignment.generation
            self._submit(events.Assigned(assignment=assignment))

    async def _ask(self) -> wire.Assignment | None:
        asked_at = time.monotonic()
        response = await self._http.get(
            f"{self._settings.control_url}/v1/pools/{self._settings.pool}/assignment",
            params={"generation": self._generation, "wait_s": LONG_POLL_S},
            timeout=LONG_POLL_S + REQUEST_TIMEOUT_S,
        )
        if response.status_code in (204, 304):
            await self._pace(asked_at)
            return None
        response.raise_for_status()
        assignment = wire.Assignment.model_validate_json(response.content)
        if assignment.generation == self._generation:
            await self._pace(asked_at)
        return assignment

    @staticmethod
    async def _pace(asked_at: float) -> None:
        """A control plane that answers "nothing new" at once must not be asked again at once."""
        if time.monotonic() - asked_at < 1:
            await asyncio.sleep(1)


class Reporter:
    """Puts the whole state of the replica, on every change and as a heartbeat."""

    def __init__(
        self,
        *,
        settings: Settings,
        machine: Machine,
        http: httpx.AsyncClient,
        submit: Callable[[events.Event], None],
        agent_url: str,
        memory_bytes: int,
        chance: random.Random | None = None,
    ) -> None:
        self._settings = settings
        self._machine = machine
        self._http = http
        self._submit = submit
        self._agent_url = agent_url
        self._memory_bytes = memory_bytes
        self._started_at = datetime.now(UTC)
        self._changed = asyncio.Event()
        self._reach = _Reachability("reporting", chance or random.Random())

    def changed(self) -> None:
        """Something should be told soon."""
        self._changed.set()

    async def run(self) -> None:
        while True:
            self._changed.clear()
            try:
                await self.report()
            except (httpx.HTTPError, ValueError) as error:
                await asyncio.sleep(self._reach.failed(error))
            else:
                self._reach.worked()
                draining = any(slot.leaving for slot in self._machine.slots)
                await self._until_changed(DRAINING_HEARTBEAT_S if draining else HEARTBEAT_S)

    async def report(self) -> None:
        """Send one report and pass the answer on to the machine."""
        reported_at = time.monotonic()
        response = await self._http.put(
            f"{self._settings.control_url}/v1/replicas/{self._settings.replica}",
            content=self.compose(reported_at).model_dump_json(),
            headers={"content-type": "application/json"},
            timeout=REQUEST_TIMEOUT_S,
        )
        response.raise_for_status()
        acknowledgement = wire.ReportAck.model_validate_json(response.content)
        self._submit(events.Acknowledged(routed=frozenset(acknowledgement.routed), reported_at=reported_at))

    def compose(self, now: float) -> wire.ReplicaReport:
        """The report as of now (seconds of the machine's clock)."""
        moment = datetime.now(UTC)
        return wire.ReplicaReport(
            replica=self._settings.replica,
            pool=self._settings.pool,
            agent_url=self._agent_url,
            started_at=self._started_at,
            generation=self._machine.generation,
            draining=self._machine.shutting_down,
            cores=self._settings.cores,
            memory_bytes=self._memory_bytes,
            servers=[self._server(slot, moment - timedelta(seconds=now - slot.since)) for slot in self._machine.slots],
        )

    def _server(self, slot: Slot, since: datetime) -> wire.ServerReport:
        facts = slot.facts
        return wire.ServerReport(
            model=slot.version.model,
            version=slot.version.version,
            digest=slot.digest,
            state=slot.state,
            since=since,
            host=self._settings.advertise_host,
            rest_port=facts.rest_port if facts else None,
            grpc_port=facts.grpc_port if facts else None,
            pid=facts.pid if facts else None,
            workers=facts.workers if facts else 0,
            threads=facts.threads if facts else 0,
            memory_bytes=slot.memory_bytes,
            restarts=slot.restarts,
            error=slot.error,
        )

    async def _until_changed(self, timeout_s: float) -> None:
        try:
            await asyncio.wait_for(self._changed.wait(), timeout_s)
        except TimeoutError:
            return
