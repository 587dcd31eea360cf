"""Every decision of the agent, without I/O.

Events come in through one door (:meth:`Machine.handle`), instructions go out; the executor carries them out and
nothing else. A process is started, believed and stopped here and nowhere else, so the whole life of a version can
be read, tested with a made-up clock, and told afterwards from the log of transitions.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator

from serving.agent import events, instructions, slots
from serving.agent.instructions import Instruction
from serving.agent.slots import Phase, Slot
from serving.agent.story import Story, Transition
from serving.domain import wire
from serving.domain.wire import VersionRef

DRAIN_TIMEOUT_S = 60.0
"""How long a version that is still routed here is kept after it left the assignment."""

ACKNOWLEDGEMENT_FRESH_S = 20.0
"""An answer older than this says nothing: the control plane is away, and nothing is stopped on its account."""

STARTUP_MARGIN_S = 60.0
"""Java's own start, on top of the manifest's startup timeout."""

RECOVERY_S = 30.0
"""How long a process whose workers are all gone may take to load one again, on top of twice its last load time."""

SILENT_DRAIN_S = 10.0
"""A replica that shuts down waits no longer than this for a control plane that does not answer: without it no
gateway learns to route away, so waiting gains nothing."""

CRASH_LOOP_DEATHS = 5
CRASH_LOOP_S = 120.0
"""That many workers dead within this time: the process is restarted as a whole."""

STABLE_S = 60.0
"""Ready for this long, earlier failures are forgotten."""


class Machine:
    """What this replica holds, wants and does next.

    Args:
        drain_timeout_s: bound on waiting for a version to be routed away.
        chance: source of the back-off's jitter.
        validate: check after every event that what always holds does hold (tests keep this on).
    """

    def __init__(
        self,
        *,
        drain_timeout_s: float = DRAIN_TIMEOUT_S,
        chance: random.Random | None = None,
        validate: bool = False,
    ) -> None:
        self._drain_timeout_s = drain_timeout_s
        self._chance = chance or random.Random()
        self._validate = validate
        # One slot for each version; two digests never stand in it at once.
        self._slots: dict[VersionRef, Slot] = {}
        # None until somebody has said what is wanted; nothing is stopped before.
        self._assignment: wire.Assignment | None = None
        self._shutdown_at: float | None = None
        self._acknowledged_at = float("-inf")
        self._attempts = 0
        self._out: list[Instruction] = []
        self._now = 0.0
        self._story = Story()

    # --- what others may see -------------------------------------------------------------------------------------

    @property
    def assignment(self) -> wire.Assignment | None:
        return self._assignment

    @property
    def generation(self) -> int:
        """Of the assignment that the current state answers; -1 before the first."""
        return self._assignment.generation if self._assignment else -1

    @property
    def shutting_down(self) -> bool:
        return self._shutdown_at is not None

    @property
    def slots(self) -> tuple[Slot, ...]:
        """All slots, to be read only."""
        return tuple(self._slots.values())

    def slot(self, ref: VersionRef) -> Slot | None:
        return self._slots.get(ref)

    def complete(self) -> bool:
        """Whether every assigned version answers correctly; False while nothing has been assigned yet."""
        if self._assignment is None or self.shutting_down:
            return False
        found = [self._slots.get(version.ref) for version in self._assignment.versions]
        return all(slot is not None and slot.phase is Phase.READY and not slot.leaving for slot in found)

    @property
    def transitions(self) -> Story:
        """The story as data, to be read only."""
        return self._story

    def story(self, ref: VersionRef | None = None) -> str:
        """The last transitions, of one version or of all."""
        return self._story.text(ref)

    # --- the one door --------------------------------------------------------------------------------------------

    def handle(self, event: events.Event, now: float) -> list[Instruction]:
        """Take in one event.

        Args:
            event: what happened.
            now: seconds of a clock that never goes back.

        Returns:
            What to do, in order.
        """
        self._out = []
        self._now = now
        if isinstance(event, events.OfAttempt):
            self._of_attempt(event)
        else:
            match event:
                case events.Assigned(assignment=assignment):
                    self._assigned(assignment)
                case events.Acknowledged():
                    self._acknowledged(event)
                case events.Adopted():
                    self._adopted(event)
                case events.ShutdownRequested(at_once=at_once):
                    self._shutdown(at_once=at_once)
                case _:
                    self._tick()
        if self.shutting_down and not self._slots:
            self._out.append(instructions.Exit())
        if self._validate:
            self.check()
        return self._out

    def check(self) -> None:
        """Raise AssertionError, with the story, when something that always holds does not."""
        try:
            for ref, slot in self._slots.items():
                assert slot.ref == ref
                assert slot.attempt <= self._attempts
                assert slot.leaving or not self.shutting_down, f"{ref} stays although the replica ends"
                slot.check()
            pids = [slot.facts.pid for slot in self._slots.values() if slot.facts]
            assert len(pids) == len(set(pids)), f"one process in two slots: {pids}"
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.story()}") from error

    # --- what is wanted ------------------------------------------------------------------------------------------

    def _assigned(self, assignment: wire.Assignment) -> None:
        changed = self._assignment is None or assignment.generation != self._assignment.generation
        self._assignment = assignment
        if self.shutting_down:
            return
        wanted = {version.ref: version for version in assignment.versions}
        for slot in self.slots:
            version = wanted.get(slot.ref)
            if version is None or version.manifest.digest != slot.digest:
                self._leave(slot, "not assigned any more" if version is None else "assigned with another digest")
            else:
                self._keep(slot, version, retry=changed)
        for ref, version in wanted.items():
            if ref not in self._slots:
                self._open(version)
        self._report()

    def _open(self, version: wire.AssignedVersion) -> None:
        slot = Slot(version=version, attempt=self._next_attempt(), phase=Phase.PULLING, since=self._now)
        self._slots[slot.ref] = slot
        self._tell(slot, None, "assigned")
        self._out.append(instructions.Pull(version=version, attempt=slot.attempt))

    def _keep(self, slot: Slot, version: wire.AssignedVersion, *, retry: bool) -> None:
        slot.version = version
        # A process that was told to end does end; its slot is opened anew once it is gone.
        if slot.leaving and slot.phase in (Phase.LAUNCHING, Phase.READY):
            slot.leaving_since = None
            self._tell(slot, slot.phase, "assigned again")
        if retry and slot.phase is Phase.WAITING:
            slot.retry_at = self._now
            self._retry(slot, "the assignment changed")

    def _leave(self, slot: Slot, why: str) -> None:
        if slot.leaving:
            return
        slot.leaving_since = self._now
        self._tell(slot, slot.phase, f"leaves: {why}")
        match slot.phase:
            case Phase.WAITING | Phase.PULLING:
                self._close(slot, why)
            case Phase.LOADING | Phase.WARMING:
                # Never reported ready since it last was not, so nothing is routed here.
                self._stop(slot, why)
            case _:
                # READY waits until it is routed away; LAUNCHING and STOPPING until their answer comes.
                pass
        self._report()

    def _acknowledged(self, event: events.Acknowledged) -> None:
        self._acknowledged_at = self._now
        for slot in self.slots:
            routed_away = slot.ref not in event.routed and event.reported_at >= (slot.leaving_since or 0)
            if slot.leaving and slot.phase is Phase.READY and routed_away:
                self._stop(slot, "nothing is routed here any more")

    def _shutdown(self, *, at_once: bool) -> None:
        if self._shutdown_at is None:
            self._shutdown_at = self._now
        for slot in self.slots:
            self._leave(slot, "the replica shuts down")
            if at_once and slot.ref in self._slots and slot.phase in (Phase.LOADING, Phase.WARMING, Phase.READY):
                self._stop(slot, "the replica shuts down at once")
        self._report()

    # --- the clock -----------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        for slot in self.slots:
            match slot.phase:
                case Phase.WAITING if slot.retry_at is not None and self._now >= slot.retry_at:
                    self._retry(slot, "time to try again")
                case Phase.LOADING if slot.deadline is not None and self._now >= slot.deadline:
                    waited = self._now - slot.since
                    self._fail(slot, f"no worker was ready after {waited:.0f} s; {slot.error or 'no error was seen'}")
                case Phase.READY if slot.leaving:
                    self._tick_draining(slot)
                case Phase.READY if slot.failures and self._now - slot.since >= STABLE_S:
                    slot.failures = 0
                case _:
                    pass

    def _tick_draining(self, slot: Slot) -> None:
        overdue = self._now - (slot.leaving_since or 0) >= self._drain_timeout_s
        reachable = self._now - self._acknowledged_at <= ACKNOWLEDGEMENT_FRESH_S
        if overdue and (reachable or self.shutting_down):
            self._stop(slot, f"still routed here after {self._drain_timeout_s:g} s")
        elif self._shutdown_at is not None:
            silent_s = self._now - max(self._shutdown_at, self._acknowledged_at)
            if silent_s >= SILENT_DRAIN_S:
                self._stop(slot, f"the replica shuts down and the control plane has been silent for {silent_s:.0f} s")

    def _retry(self, slot: Slot, why: str) -> None:
        slot.attempt = self._next_attempt()
        slot.retry_at = None
        if slot.prepared:
            self._launch(slot, why)
        else:
            self._move(slot, Phase.PULLING, why)
            self._out.append(instructions.Pull(version=slot.version, attempt=slot.attempt))

    def _launch(self, slot: Slot, why: str) -> None:
        self._move(slot, Phase.LAUNCHING, why)
        models = {other.version.model for other in self.slots if not other.leaving} | {slot.version.model}
        self._out.append(instructions.Start(version=slot.version, attempt=slot.attempt, models=len(models)))

    # --- what happened to one attempt ----------------------------------------------------------------------------

    def _of_attempt(self, event: events.OfAttempt) -> None:
        slot = self._slots.get(event.ref)
        if slot is None or slot.attempt != event.attempt:
            return
        handler = self._handlers().get((type(event), slot.phase))
        if handler is not None:
            handler(slot, event)

    def _handlers(self) -> dict[tuple[type[events.Event], Phase], Callable[[Slot, events.Event], None]]:
        """Which event means something in which phase; all others come too late."""
        table: dict[tuple[type[events.Event], Phase], Callable[[Slot, events.Event], None]] = {}
        for kind, phases, handler in self._table():
            table |= {(kind, phase): handler for phase in phases}
        return table

    def _table(self) -> Iterator[tuple[type[events.Event], Iterable[Phase], Callable[[Slot, events.Event], None]]]:
        running = (Phase.LOADING, Phase.WARMING, Phase.READY)
        yield events.Pulled, [Phase.PULLING], self._pulled
        yield events.PullFailed, [Phase.PULLING], self._pull_failed
        yield events.Started, [Phase.LAUNCHING], self._started
        yield events.StartFailed, [Phase.LAUNCHING], self._start_failed
        yield events.Observed, running, self._observed
        yield events.LoadFailed, [Phase.LOADING], self._load_failed
        yield events.Exited, running, self._exited
        yield events.GoldenPassed, [Phase.WARMING], self._golden_passed
        yield events.GoldenFailed, [Phase.WARMING], self._golden_failed
        yield events.Stopped, [Phase.STOPPING], self._stopped

    def _pulled(self, slot: Slot, event: events.Event) -> None:
        slot.prepared = True
        slot.transient = False
        self._launch(slot, "verified and unpacked")

    def _pull_failed(self, slot: Slot, event: events.Event) -> None:
        assert isinstance(event, events.PullFailed)
        slot.transient = event.transient
        slot.back_off = slots.STORE if event.transient else slots.LOAD
        slot.error = event.error
        self._wait(slot)

    def _started(self, slot: Slot, event: events.Event) -> None:
        assert isinstance(event, events.Started)
        slot.facts = event.facts
        slot.deaths = 0
        slot.death_times.clear()
        self._load(slot, f"Java runs as {event.facts.pid}", startup=True)
        if slot.leaving:
            self._stop(slot, "left while it was starting")

    def _start_failed(self, slot: Slot, event: events.Event) -> None:
        assert isinstance(event, events.StartFailed)
        slot.error = event.error
        slot.back_off = slots.LOAD
        # The copy may be what is wrong; pulling looks at it again and costs nothing when it is whole.
        slot.prepared = False
        if slot.leaving:
            self._close(slot, "left while it was starting")
        else:
            self._wait(slot)

    def _observed(self, slot: Slot, event: events.Event) -> None:
        assert isinstance(event, events.Observed) and slot.facts is not None
        slot.ready_workers = event.ready_workers
        slot.queued = event.queued
        slot.memory_bytes = event.memory_bytes
        for _ in range(event.worker_deaths - slot.deaths):
            slot.death_times.append(self._now)
        slot.deaths = event.worker_deaths
        recent = sum(self._now - at <= CRASH_LOOP_S for at in slot.death_times)
        if recent >= CRASH_LOOP_DEATHS:
            said = event.last_words or slot.error or "they left no word"
            self._fail(slot, f"{recent} workers died within {CRASH_LOOP_S:.0f} s; {said}")
        elif slot.phase is Phase.LOADING and event.ready_workers >= self._enough(slot):
            slot.load_s = max(slot.load_s, self._now - slot.since)
            self._move(slot, Phase.WARMING, f"{event.ready_workers} workers are ready")
            self._out.append(instructions.Replay(version=slot.version, attempt=slot.attempt))
        elif slot.phase is Phase.READY and event.ready_workers == 0:
            slot.restarts += 1
            slot.error = "no worker is ready: all have died, or hung past their response timeout"
            if event.last_words:
                slot.error += f"\n{event.last_words}"
            self._load(slot, slot.error, startup=False)

    def _enough(self, slot: Slot) -> int:
        """All workers at first; after a loss, one that answers is better than none."""
        assert slot.facts is not None
        return slot.facts.workers if slot.deaths == 0 else 1

    def _load_failed(self, slot: Slot, event: events.Event) -> None:
        assert isinstance(event, events.LoadFailed)
        self._fail(slot, event.error)

    def _exited(self, slot: Slot, event: events.Event) -> None:
        assert isinstance(event, events.Exited)
        slot.restarts += 1
        slot.error = f"the server process {event.reason}"
        slot.back_off = slots.CRASH
        self._stop(slot, slot.error, graceful=False)

    def _golden_passed(self, slot: Slot, event: events.Event) -> None:
        slot.error = None
        self._move(slot, Phase.READY, "the golden inputs were answered")

    def _golden_failed(self, slot: Slot, event: events.Event) -> None:
        assert isinstance(event, events.GoldenFailed)
        self._fail(slot, event.error)

    def _stopped(self, slot: Slot, event: events.Event) -> None:
        slot.facts = None
        slot.ready_workers = slot.queued = slot.memory_bytes = 0
        if not slot.leaving:
            self._wait(slot)
            return
        self._close(slot, "stopped")
        again = next((v for v in self._assignment.versions if v.ref == slot.ref), None) if self._assignment else None
        if again is not None and not self.shutting_down:
            self._open(again)

    def _adopted(self, event: events.Adopted) -> None:
        slot = Slot(
            version=event.version,
            attempt=self._next_attempt(),
            phase=Phase.READY if event.answers else Phase.LOADING,
            since=self._now,
            prepared=True,
            facts=event.facts,
            deadline=None if event.answers else self._now + _startup_s(event.version),
            error=None if event.answers else "found running after the agent's restart, but not answering",
        )
        self._slots[slot.ref] = slot
        self._tell(slot, None, f"adopted, process {event.facts.pid}")
        self._out.append(instructions.Watch(version=slot.version, attempt=slot.attempt))
        self._report()

    # --- moves ---------------------------------------------------------------------------------------------------

    def _load(self, slot: Slot, why: str, *, startup: bool) -> None:
        patience = _startup_s(slot.version) if startup else RECOVERY_S + 2 * slot.load_s
        self._move(slot, Phase.LOADING, why)
        slot.deadline = self._now + patience

    def _fail(self, slot: Slot, error: str) -> None:
        slot.error = error
        slot.back_off = slots.LOAD
        self._stop(slot, error)

    def _stop(self, slot: Slot, why: str, *, graceful: bool = True) -> None:
        self._move(slot, Phase.STOPPING, why)
        self._out.append(instructions.Stop(version=slot.version, attempt=slot.attempt, graceful=graceful))

    def _wait(self, slot: Slot) -> None:
        slot.failures += 1
        pause = slot.back_off.delay(slot.failures, self._chance)
        slot.retry_at = self._now + pause
        self._move(slot, Phase.WAITING, f"try {slot.failures + 1} in {pause:.1f} s; {slot.error}")

    def _close(self, slot: Slot, why: str) -> None:
        del self._slots[slot.ref]
        self._tell(slot, slot.phase, f"closed: {why}", closed=True)
        self._out.append(instructions.Discard(version=slot.version, attempt=slot.attempt))
        self._report()

    def _move(self, slot: Slot, phase: Phase, why: str) -> None:
        before, slot.phase, slot.since = slot.phase, phase, self._now
        slot.deadline = None
        self._tell(slot, before, why)
        self._report()

    def _tell(self, slot: Slot, before: Phase | None, why: str, *, closed: bool = False) -> None:
        after = None if closed else slot.phase
        self._story.add(
            Transition(at=self._now, ref=slot.ref, attempt=slot.attempt, before=before, after=after, why=why)
        )

    def _report(self) -> None:
        if not any(isinstance(instruction, instructions.Report) for instruction in self._out):
            self._out.append(instructions.Report())

    def _next_attempt(self) -> int:
        self._attempts += 1
        return self._attempts


def _startup_s(version: wire.AssignedVersion) -> float:
    return version.manifest.serving.startup_timeout_s + STARTUP_MARGIN_S
