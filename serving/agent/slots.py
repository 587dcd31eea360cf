"""The state of one version on this replica, and the rules that need nothing but it."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum

from serving.agent.events import Facts
from serving.domain import wire
from serving.domain.wire import ServerState, VersionRef


class Phase(StrEnum):
    WAITING = "waiting"
    """Nothing runs; the next try begins at ``retry_at``."""
    PULLING = "pulling"
    LAUNCHING = "launching"
    """The private copy is in place; Java is being started."""
    LOADING = "loading"
    """Java runs; not enough workers are ready."""
    WARMING = "warming"
    """The golden inputs are being replayed."""
    READY = "ready"
    STOPPING = "stopping"
    """The process has been told to end and is not yet gone."""


WITH_PROCESS = frozenset({Phase.LOADING, Phase.WARMING, Phase.READY, Phase.STOPPING})


@dataclass(frozen=True, kw_only=True)
class BackOff:
    """Growing pauses between tries, each up to a quarter longer by chance so that replicas do not move in step."""

    first_s: float
    cap_s: float

    def delay(self, failures: int, chance: random.Random) -> float:
        """Pause before the next try.

        Args:
            failures: how many tries in a row have failed, at least 1.
        """
        base = min(self.cap_s, self.first_s * 2.0 ** (min(failures, 32) - 1))
        return base * (1 + chance.random() / 4)


CRASH = BackOff(first_s=0.5, cap_s=60)
"""A process that served and is gone."""

STORE = BackOff(first_s=1, cap_s=30)
"""The store could not be reached."""

LOAD = BackOff(first_s=10, cap_s=300)
"""A version that cannot load, or an archive that is wrong: trying again rarely helps."""


@dataclass(kw_only=True)
class Slot:
    """One version on this replica."""

    version: wire.AssignedVersion
    attempt: int
    """Names the current try; grows with each, over all slots."""
    phase: Phase
    since: float
    """When the phase began."""
    retry_at: float | None = None
    """Set exactly while WAITING."""
    prepared: bool = False
    """Whether the verified private copy is in place; true in every phase after PULLING."""
    facts: Facts | None = None
    """Set exactly in the phases that have a process."""
    error: str | None = None
    """Why it is not ready, or was not the last time; cleared when it becomes ready."""
    transient: bool = False
    """Whether the error is about somebody else (a store that is away), not about the version."""
    failures: int = 0
    """Tries in a row that failed; forgotten after it was ready for a while."""
    back_off: BackOff = LOAD
    """How the pause after the current stop is chosen."""
    restarts: int = 0
    """How often the process or all of its workers have been lost."""
    leaving_since: float | None = None
    """Set while the version is not wanted here any more."""
    deadline: float | None = None
    """Set exactly while LOADING: when to give up."""
    load_s: float = 0.0
    """How long loading took the last time."""
    deaths: int = 0
    """Workers that have died since the process started."""
    death_times: deque[float] = field(default_factory=lambda: deque[float](maxlen=32))
    ready_workers: int = 0
    queued: int = 0
    memory_bytes: int = 0

    @property
    def ref(self) -> VersionRef:
        return self.version.ref

    @property
    def digest(self) -> str:
        return self.version.manifest.digest

    @property
    def leaving(self) -> bool:
        return self.leaving_since is not None

    @property
    def state(self) -> ServerState:
        """The phase in the control plane's words."""
        match self.phase:
            case Phase.PULLING:
                return ServerState.PULLING
            case Phase.LAUNCHING | Phase.LOADING:
                return ServerState.STARTING
            case Phase.WARMING:
                return ServerState.WARMING
            case Phase.READY:
                return ServerState.DRAINING if self.leaving else ServerState.READY
            case Phase.STOPPING:
                return ServerState.DRAINING if self.leaving else ServerState.FAILED
            case Phase.WAITING:
                return ServerState.PULLING if self.transient else ServerState.FAILED

    def check(self) -> None:
        """Raise AssertionError when something that always holds does not."""
        assert (self.retry_at is not None) == (self.phase is Phase.WAITING), f"{self.ref}: retry_at in {self.phase}"
        assert (self.facts is not None) == (self.phase in WITH_PROCESS), f"{self.ref}: facts in {self.phase}"
        assert (self.deadline is not None) == (self.phase is Phase.LOADING), f"{self.ref}: deadline in {self.phase}"
        assert self.prepared or self.phase in (Phase.WAITING, Phase.PULLING), f"{self.ref}: {self.phase} unprepared"
        assert not (self.leaving and self.phase is Phase.WAITING), f"{self.ref}: leaves and waits for a retry"
        assert self.error is not None or self.phase is not Phase.WAITING, f"{self.ref}: waits for no reason"
