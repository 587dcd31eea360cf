from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from serving.local import errors, leftovers, supervisor
from serving.local.home import Home, PartState
from serving.local.home import Part as Report
from serving.local.parts import Part
from serving.local.supervisor import Supervisor

pytestmark = pytest.mark.integration

MakePart = Callable[..., Part]
DEADLINE_S = 30.0


async def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"waited {DEADLINE_S} s for {what}"
        await asyncio.sleep(0.02)


def report(running: Supervisor, name: str) -> Report:
    return next(each for each in running.reports if each.name == name)


def test_parts_start_when_those_they_need_are_ready_and_stop_in_their_own_order(
    make_part: MakePart, story: Path
) -> None:
    async def scenario() -> None:
        running = Supervisor(
            [
                make_part("store"),
                make_part("control-plane", after=("store",)),
                make_part("gateway"),
                make_part("agent", after=("control-plane", "gateway")),
            ]
        )
        await running.start()
        assert {each.state for each in running.reports} == {PartState.READY}
        await running.stop()
        assert {each.state for each in running.reports} == {PartState.STOPPED}
        assert {each.pid for each in running.reports} == {None}

    asyncio.run(scenario())
    lines = story.read_text().splitlines()
    starts, ends = lines[:4], lines[4:]
    assert starts.index("store starts") < starts.index("control-plane starts") < starts.index("agent starts")
    assert ends == ["gateway ends", "agent ends", "control-plane ends", "store ends"]


def test_a_part_that_is_killed_is_started_again_and_its_loss_is_told(make_part: MakePart) -> None:
    told: list[Report] = []

    async def scenario() -> None:
        running = Supervisor([make_part("store")], on_change=told.append)
        await running.start()
        before = report(running, "store").pid
        assert before is not None
        os.kill(before, signal.SIGKILL)
        await until(lambda: report(running, "store").pid not in (None, before), "another process")
        await until(lambda: report(running, "store").state is PartState.READY, "it to be ready")
        assert report(running, "store").restarts == 1
        await running.stop()

    asyncio.run(scenario())
    losses = [each for each in told if each.state is PartState.RESTARTING]
    assert losses
    assert "killed by SIGKILL" in str(losses[0].error)
    assert losses[0].pid is None


def test_a_part_that_dies_at_once_fails_the_start_with_its_status_and_last_words(make_part: MakePart) -> None:
    async def scenario() -> None:
        running = Supervisor([make_part("store"), make_part("agent", "dies", after=("store",))])
        try:
            with pytest.raises(errors.PartFailed, match="agent ended with exit status 7; its log is") as failure:
                await running.start()
            assert failure.value.log_tail[-1] == "cannot go on: no reason"
        finally:
            await running.stop()

    asyncio.run(scenario())


def test_a_part_that_never_gets_ready_fails_the_start_in_time_and_is_not_left_running(
    make_part: MakePart, home: Home
) -> None:
    async def scenario() -> None:
        running = Supervisor([make_part("store", "never-ready", start_timeout_s=0.5)])
        try:
            with pytest.raises(errors.PartFailed, match=r"store was not ready within 0.5 s \(http"):
                await running.start()
        finally:
            await running.stop()

    asyncio.run(scenario())
    assert leftovers.find(home) == []


def test_a_program_that_is_not_there_fails_the_start(make_part: MakePart) -> None:
    async def scenario() -> None:
        running = Supervisor([make_part("store", command=("/nowhere/weed",))])
        try:
            with pytest.raises(errors.PartFailed, match=r"cannot be started: .*weed"):
                await running.start()
        finally:
            await running.stop()

    asyncio.run(scenario())


def test_a_part_that_is_lost_again_and_again_is_said_to_crash_loop(
    make_part: MakePart, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "FIRST_BACK_OFF_S", 0.001)
    monkeypatch.setattr(supervisor, "CRASH_LOOP", 2)
    told: list[Report] = []

    async def scenario() -> None:
        running = Supervisor([make_part("store")], on_change=told.append)
        await running.start()
        for losses in (1, 2):
            await until(lambda: report(running, "store").state is PartState.READY, "it to be ready")
            os.kill(report(running, "store").pid or 0, signal.SIGKILL)
            await until(lambda losses=losses: report(running, "store").restarts == losses, "the loss")
        await running.stop()

    asyncio.run(scenario())
    assert PartState.CRASH_LOOPING in {each.state for each in told}


def test_a_part_that_ignores_sigterm_is_killed_after_its_bound(make_part: MakePart, home: Home) -> None:
    async def scenario() -> float:
        running = Supervisor([make_part("store", "stubborn", stop_timeout_s=0.3)])
        await running.start()
        started = time.monotonic()
        await running.stop()
        return time.monotonic() - started

    assert asyncio.run(scenario()) < 10
    assert leftovers.find(home) == []


def test_what_has_to_be_drained_is_drained_before_it_is_told_to_end(make_part: MakePart, story: Path) -> None:
    async def drain() -> None:
        with story.open("a") as lines:
            lines.write("drained\n")

    async def scenario() -> None:
        running = Supervisor([make_part("gateway", drain=drain)])
        await running.start()
        await running.stop()

    asyncio.run(scenario())
    assert story.read_text().splitlines() == ["gateway starts", "drained", "gateway ends"]


def test_a_start_that_is_given_up_leaves_nothing_running(make_part: MakePart, home: Home) -> None:
    async def scenario() -> None:
        running = Supervisor([make_part("store"), make_part("agent", "never-ready", after=("store",))])
        start = asyncio.create_task(running.start())
        await until(lambda: report(running, "agent").pid is not None, "the agent to be started")
        start.cancel()
        await running.stop()

    asyncio.run(scenario())
    assert leftovers.find(home) == []
