"""A stack's whole life in one process: prepare, start, prove that it answers, wait, stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import secrets
import signal
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

from pydantic import BaseModel

from model_store import settings as store_settings
from serving.local import answering, checks, errors, leftovers, parts, ports, seaweed
from serving.local.home import Home, Part, Stack, StackState, Store, Supervisor, unusable
from serving.local.supervisor import Supervisor as PartsSupervisor

log = logging.getLogger(__name__)

ANSWER_TIMEOUT_S = 300.0
"""How long versions that were promoted earlier may take to be loaded and warm again."""


class Message(BaseModel):
    """What a stack tells those who started it."""

    kind: Literal["part", "waiting", "ready", "degraded", "failed", "stopped"]
    text: str = ""
    error: str = ""
    """Class of the error, for ``failed``."""
    part: Part | None = None
    stack: Stack | None = None
    log_tail: list[str] = []


Tell = Callable[[Message], None]


@dataclass(frozen=True, kw_only=True)
class Wishes:
    """What a person asked for on the command line."""

    home: Home
    ports: dict[str, int | None] = field(default_factory=dict[str, int | None])
    answer_timeout_s: float = ANSWER_TIMEOUT_S
    options: parts.Options = field(default_factory=parts.Options)


class Running:
    """One run of a stack. ``run`` is called once."""

    def __init__(self, wishes: Wishes, *, tell: Tell) -> None:
        self._wishes = wishes
        self._home = wishes.home
        self._tell = tell
        self._stack: Stack | None = None

    def run(self) -> None:
        """Run until told to stop by a signal; everything is stopped when this returns, or raises.

        Raises:
            LocalError: nothing could be started, or it did not come up.
        """
        options = self._wishes.options
        checks.home(self._home)
        with self._home.lock():
            checks.programs(
                worker_python=options.environment.get("SLIPWAY_WORKER_PYTHON"), with_store=options.with_store
            )
            for name in leftovers.stop_parts(self._home):
                log.warning("%s was left over from a run whose supervisor was killed, and has been stopped", name)
            stack = prepare(self._wishes)
            try:
                self._home.write(stack)
            except OSError as error:
                raise unusable(self._home, error) from error
            asyncio.run(self._live(stack))

    async def _live(self, stack: Stack) -> None:
        self._stack = stack
        asked = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(number, asked.set)
        supervisor = PartsSupervisor(
            parts.build(self._home, stack, self._wishes.options), on_change=lambda part: self._changed(part, supervisor)
        )
        stopping = asyncio.create_task(asked.wait())
        try:
            await _unless(stopping, self._come_up(supervisor, stack))
            await stopping
        finally:
            stack.state = StackState.STOPPING
            await supervisor.stop()
            await asyncio.to_thread(leftovers.stop_all, self._home)
            stack.state = StackState.STOPPED
            stack.supervisor = None
            self._write()

    async def _come_up(self, supervisor: PartsSupervisor, stack: Stack) -> None:
        stack.parts = supervisor.reports
        await supervisor.start()
        try:
            await answering.wait(
                stack,
                timeout_s=self._wishes.answer_timeout_s,
                tell=lambda what: self._tell(Message(kind="waiting", text=what)),
            )
        except errors.NotAnswering as error:
            # It stays up: a stack that stopped for one bad version could never be told to serve another.
            self._become_ready(stack, Message(kind="degraded", text=str(error), stack=stack))
        else:
            self._become_ready(stack, Message(kind="ready", stack=stack))

    def _become_ready(self, stack: Stack, message: Message) -> None:
        stack.state = StackState.READY
        self._write()
        self._tell(message)

    def _changed(self, part: Part, supervisor: PartsSupervisor) -> None:
        if self._stack is not None:
            self._stack.parts = supervisor.reports
            self._write()
        self._tell(Message(kind="part", part=part))

    def _write(self) -> None:
        """A full disk must not end what serves: it costs the status its truth, and nothing else."""
        try:
            if self._stack is not None:
                self._home.write(self._stack)
        except OSError as error:
            log.error("the stack's state cannot be written: %s", error)


async def _unless(stopping: asyncio.Task[bool], work: Coroutine[Any, Any, None]) -> None:
    """Do the work unless the stack is told to stop meanwhile."""
    task = asyncio.create_task(work)
    await asyncio.wait([stopping, task], return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        task.result()
        return
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    raise errors.Interrupted("stopped before everything was ready")


def prepare(wishes: Wishes) -> Stack:
    """Decide addresses and credentials; those of the last run in this home are kept.

    Raises:
        PortTaken: naming the port and the option.
    """
    kept = wishes.home.read()
    chosen = ports.choose(
        parts.private_ports(wishes.options),
        asked=wishes.ports,
        kept=kept.ports if kept else {},
        chance=random.Random(),
    )
    return Stack(
        gateway=_url(chosen[ports.GATEWAY]),
        control_plane=_url(chosen[ports.CONTROL_PLANE]),
        agent=_url(chosen[parts.AGENT_PORT]),
        store=_store(wishes, kept.store if kept else None, chosen),
        ports=chosen,
        supervisor=Supervisor.this(),
        started_at=datetime.now(UTC),
    )


def _url(port: int) -> str:
    return f"http://{ports.LOOPBACK}:{port}"


def _store(wishes: Wishes, kept: Store | None, chosen: dict[str, int]) -> Store:
    if not wishes.options.with_store:
        where = store_settings.Settings.from_env(wishes.options.environment)
        return Store(url=where.url, endpoint=where.endpoint, region=where.region)
    return Store(
        url=f"s3://{seaweed.BUCKET}",
        endpoint=_url(chosen[seaweed.port_name("s3.port")]),
        region=seaweed.REGION,
        access_key=(kept and kept.access_key) or f"slipway-{secrets.token_hex(8)}",
        secret_key=(kept and kept.secret_key) or secrets.token_hex(32),
    )
