"""A made-up world for the machine: a clock that moves only when told, and processes that do as they are told."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TypeVar

from model_store import manifest as manifests
from serving.agent import events, instructions
from serving.agent.machine import Machine
from serving.agent.slots import Slot
from serving.domain import wire
from serving.domain.wire import ServerState, VersionRef

Asked = TypeVar("Asked", bound=instructions.Instruction)


def version(number: int = 1, *, model: str = "resnet", digest: str | None = None) -> wire.AssignedVersion:
    """A version with a manifest of its own."""
    manifest = manifests.Manifest(
        model=model,
        digest=digest or f"{hash((model, number)) & 0xFFFFFFFF:064x}",
        size_bytes=1,
        unpacked_bytes=1,
        archive_key="archives/x.mar",
        config=manifests.ArchiveConfig(handler="image_classifier"),
        provenance=manifests.Provenance(
            created_at=datetime(2026, 1, 1, tzinfo=UTC), created_by="test", host="test", slipway="0"
        ),
    )
    return wire.AssignedVersion(model=model, version=number, manifest=manifest)


def ref(number: int = 1, *, model: str = "resnet") -> VersionRef:
    return VersionRef(model=model, version=number)


@dataclass
class World:
    """Drives one machine and keeps what it asked for."""

    machine: Machine = field(default_factory=lambda: Machine(chance=random.Random(0), validate=True))
    now: float = 1000.0
    asked: list[instructions.Instruction] = field(default_factory=list[instructions.Instruction])
    generation: int = 0
    pids: int = 100

    def tell(self, event: events.Event) -> list[instructions.Instruction]:
        """Hand over an event; returns (and keeps) what the machine asks for."""
        out = self.machine.handle(event, self.now)
        self.asked += out
        return out

    def assign(self, *versions: wire.AssignedVersion) -> list[instructions.Instruction]:
        self.generation += 1
        return self.tell(
            events.Assigned(assignment=wire.Assignment(pool="cpu", generation=self.generation, versions=list(versions)))
        )

    def wait(self, seconds: float) -> list[instructions.Instruction]:
        """Let time pass, a quarter of a second at a time."""
        out: list[instructions.Instruction] = []
        end = self.now + seconds
        while self.now < end:
            self.now += 0.25
            out += self.tell(events.Tick())
        return out

    def acknowledge(self, *routed: VersionRef, reported_at: float | None = None) -> list[instructions.Instruction]:
        moment = self.now if reported_at is None else reported_at
        return self.tell(events.Acknowledged(routed=frozenset(routed), reported_at=moment))

    def last(self, kind: type[Asked]) -> Asked:
        """The newest instruction of a kind."""
        return next(instruction for instruction in reversed(self.asked) if isinstance(instruction, kind))

    def count(self, kind: type[instructions.Instruction]) -> int:
        return sum(isinstance(instruction, kind) for instruction in self.asked)

    def slot(self, number: int = 1, *, model: str = "resnet") -> Slot:
        slot = self.machine.slot(ref(number, model=model))
        assert slot is not None, self.machine.story()
        return slot

    def state(self, number: int = 1, *, model: str = "resnet") -> ServerState:
        return self.slot(number, model=model).state

    # --- what the executor would answer --------------------------------------------------------------------------

    def facts(self) -> events.Facts:
        self.pids += 1
        return events.Facts(pid=self.pids, host="127.0.0.1", rest_port=1, grpc_port=2, workers=2, threads=1)

    def pulled(self, wanted: instructions.ForVersion) -> None:
        self.tell(events.Pulled(ref=wanted.ref, attempt=wanted.attempt))

    def started(self, wanted: instructions.ForVersion) -> None:
        self.tell(events.Started(ref=wanted.ref, attempt=wanted.attempt, facts=self.facts()))

    def observed(
        self, wanted: instructions.ForVersion, *, ready: int, deaths: int = 0, words: str | None = None
    ) -> None:
        self.tell(
            events.Observed(
                ref=wanted.ref,
                attempt=wanted.attempt,
                ready_workers=ready,
                worker_deaths=deaths,
                last_words=words,
                memory_bytes=1,
            )
        )

    def exited(self, number: int = 1) -> None:
        slot = self.slot(number)
        self.tell(events.Exited(ref=slot.ref, attempt=slot.attempt, reason="killed by SIGKILL"))

    def stopped(self, number: int = 1) -> None:
        slot = self.slot(number)
        self.tell(events.Stopped(ref=slot.ref, attempt=slot.attempt))

    def make_ready(self, wanted: wire.AssignedVersion) -> None:
        """Bring an assigned version all the way to READY."""
        pull = next(i for i in reversed(self.asked) if isinstance(i, instructions.Pull) and i.version.ref == wanted.ref)
        self.pulled(pull)
        self.load(wanted)

    def load(self, wanted: wire.AssignedVersion) -> None:
        """Answer a Start, up to READY."""
        start = next(
            i for i in reversed(self.asked) if isinstance(i, instructions.Start) and i.version.ref == wanted.ref
        )
        self.started(start)
        self.observed(start, ready=2)
        self.tell(events.GoldenPassed(ref=wanted.ref, attempt=start.attempt))
