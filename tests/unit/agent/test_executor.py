from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import httpx
import pytest

from model_store.errors import DigestMismatch, StoreUnreachable
from serving.agent import events
from serving.agent.executor import Executor
from serving.agent.machine import Machine
from serving.agent.settings import Settings
from serving.domain import wire
from serving.domain.wire import ServerState
from serving.torchserve.errors import NotInstalled
from serving.torchserve.installation import Installation
from tests.unit.agent.world import version


class FakeCopies:
    """Copies that come about as a test wants."""

    def __init__(self, folder: Path, prepare: Callable[[], None]) -> None:
        self._folder = folder
        self._prepare = prepare
        self.discarded = threading.Event()

    def prepare(self, version: wire.AssignedVersion) -> None:
        self._prepare()

    def discard(self, version: wire.AssignedVersion) -> None:
        self.discarded.set()

    def root(self, version: wire.AssignedVersion) -> Path:
        return self._folder / str(version.version)

    def sweep(self, keep: Iterable[Path]) -> None:
        pass


def not_installed(_: str) -> Installation:
    raise NotInstalled("the worker's interpreter lacks torchserve")


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.005)


def drive(folder: Path, prepare: Callable[[], None], seen: Callable[[Machine], bool]) -> Machine:
    """Assign one version, wait until something is to be seen, and shut down."""

    async def run() -> Machine:
        machine = Machine(validate=True)
        settings = Settings(control_url="http://c", pool="cpu", replica="r", home=folder)
        async with httpx.AsyncClient() as http:
            executor = Executor(
                machine=machine,
                settings=settings,
                copies=FakeCopies(folder, prepare),
                http=http,
                on_change=lambda: None,
                install=not_installed,
            )
            executor.submit(
                events.Assigned(assignment=wire.Assignment(pool="cpu", generation=1, versions=[version(1)]))
            )
            running = asyncio.create_task(executor.run())
            await until(lambda: seen(machine))
            executor.submit(events.ShutdownRequested())
            await asyncio.wait_for(running, 2)
        return machine

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (DigestMismatch("other bytes"), ServerState.FAILED),
        (StoreUnreachable("no route"), ServerState.PULLING),
        (OSError(28, "No space left on device"), ServerState.FAILED),
        (RuntimeError("a fault of ours"), ServerState.FAILED),
    ],
)
def test_a_pull_that_fails_is_told_whatever_the_reason(tmp_path: Path, error: Exception, state: ServerState) -> None:
    def fail() -> None:
        raise error

    told: list[str] = []

    def seen(machine: Machine) -> bool:
        told[:] = [f"{slot.state} {slot.error}" for slot in machine.slots if slot.error]
        return bool(told)

    drive(tmp_path, fail, seen)
    assert told == [f"{state} {error}"]


def test_a_launch_that_fails_is_told(tmp_path: Path) -> None:
    machine = drive(tmp_path, lambda: None, lambda machine: any(slot.error for slot in machine.slots))
    assert "lacks torchserve" in machine.story()


def test_a_download_under_way_does_not_delay_the_end(tmp_path: Path) -> None:
    begun, release = threading.Event(), threading.Event()

    def download() -> None:
        begun.set()
        release.wait(20)

    started = time.monotonic()
    try:
        drive(tmp_path, download, lambda _: begun.is_set())
    finally:
        release.set()
    assert time.monotonic() - started < 5
