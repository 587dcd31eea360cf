"""Whatever happens, in whatever order: what always holds does hold, and calm follows."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from serving.agent import events, instructions
from serving.agent.machine import Machine
from serving.domain.wire import VersionRef
from tests.unit.agent.world import World, version

VERSIONS = [version(1), version(2), version(1, model="bert"), version(1, digest="e" * 64)]


class Executor:
    """Carries out in a random order, and may fail at anything; knows which processes live."""

    def __init__(self, world: World, chance: random.Random, *, failing: bool) -> None:
        self.world = world
        self.chance = chance
        self.failing = failing
        self.open: list[instructions.ForVersion] = []
        self.alive: dict[int, VersionRef] = {}
        self.routed: frozenset[VersionRef] = frozenset()
        self.acknowledged = False

    def take(self, asked: list[instructions.Instruction]) -> None:
        for instruction in asked:
            if isinstance(instruction, instructions.ForVersion):
                self.open.append(instruction)

    def tell(self, event: events.Event) -> None:
        self.take(self.world.tell(event))

    def step(self) -> None:
        """Finish one open instruction, or let a living process say something."""
        if self.open and self.chance.random() < 0.8:
            self._finish(self.open.pop(self.chance.randrange(len(self.open))))
        for slot in self.world.machine.slots:
            if slot.attempt not in self.alive:
                continue
            common = {"ref": slot.ref, "attempt": slot.attempt}
            if self._fails(0.1):
                self.tell(events.Exited(**common, reason="crashed"))
            else:
                ready = 0 if self._fails(0.2) else 2
                self.tell(events.Observed(**common, ready_workers=ready, worker_deaths=0))

    def _fails(self, probability: float) -> bool:
        return self.failing and self.chance.random() < probability

    def _finish(self, wanted: instructions.ForVersion) -> None:
        common = {"ref": wanted.ref, "attempt": wanted.attempt}
        match wanted:
            case instructions.Pull():
                if self._fails(0.3):
                    self.tell(events.PullFailed(**common, error="no", transient=self.chance.random() < 0.5))
                else:
                    self.tell(events.Pulled(**common))
            case instructions.Start():
                if self._fails(0.3):
                    self.tell(events.StartFailed(**common, error="no"))
                else:
                    # Two processes of one version would fight for its folder.
                    assert wanted.ref not in self.alive.values(), self.world.machine.story(wanted.ref)
                    self.alive[wanted.attempt] = wanted.ref
                    self.tell(events.Started(**common, facts=self.world.facts()))
            case instructions.Replay():
                if self._fails(0.2):
                    self.tell(events.GoldenFailed(**common, error="no"))
                else:
                    self.tell(events.GoldenPassed(**common))
            case instructions.Stop():
                self.alive.pop(wanted.attempt, None)
                self.tell(events.Stopped(**common))
            case _:
                pass


@given(seed=st.integers(0, 2**32), steps=st.integers(1, 120))
@settings(max_examples=150, deadline=None)
def test_after_any_history_a_calm_world_ends_with_exactly_what_is_assigned(seed: int, steps: int) -> None:
    chance = random.Random(seed)
    world = World(machine=Machine(chance=chance, validate=True))
    executor = Executor(world, chance, failing=True)
    for _ in range(steps):
        world.now += chance.choice([0.1, 1, 30])
        match chance.randrange(5):
            case 0:
                wanted = {v.ref: v for v in chance.sample(VERSIONS, chance.randrange(4))}
                executor.take(world.assign(*wanted.values()))
            case 1:
                executor.tell(
                    events.Acknowledged(
                        routed=frozenset(v.ref for v in VERSIONS if chance.random() < 0.5), reported_at=world.now
                    )
                )
            case 2:
                executor.tell(events.Tick())
            case _:
                executor.step()

    executor.failing = False
    final = {v.ref: v for v in chance.sample(VERSIONS, 2)}
    executor.take(world.assign(*final.values()))
    for _ in range(400):
        world.now += 10
        executor.tell(events.Acknowledged(routed=frozenset(), reported_at=world.now))
        executor.tell(events.Tick())
        executor.step()

    assert world.machine.complete(), world.machine.story()
    assert {slot.ref: slot.digest for slot in world.machine.slots} == {
        ref: v.manifest.digest for ref, v in final.items()
    }, world.machine.story()
    assert sorted(map(str, executor.alive.values())) == sorted(map(str, final)), world.machine.story()


@given(seed=st.integers(0, 2**32), steps=st.integers(1, 80))
@settings(max_examples=100, deadline=None)
def test_after_any_history_a_shutdown_ends_with_nothing(seed: int, steps: int) -> None:
    chance = random.Random(seed)
    world = World(machine=Machine(chance=chance, validate=True))
    executor = Executor(world, chance, failing=True)
    for _ in range(steps):
        world.now += 1
        if chance.random() < 0.2:
            wanted = {v.ref: v for v in chance.sample(VERSIONS, chance.randrange(4))}
            executor.take(world.assign(*wanted.values()))
        executor.tell(events.Tick())
        executor.step()

    executor.tell(events.ShutdownRequested())
    for _ in range(100):
        world.now += 5
        executor.tell(events.Tick())
        executor.step()

    assert world.machine.slots == (), world.machine.story()
    assert not executor.alive
    assert world.count(instructions.Exit) >= 1
