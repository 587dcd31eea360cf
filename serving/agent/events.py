"""What the agent's machine is told: facts from the control plane, from the processes, and from the clock.

An event about a server process names the *attempt* that it belongs to. What an earlier attempt still has to say is
dropped, so a slow answer can never be taken for news.
"""

from __future__ import annotations

from dataclasses import dataclass

from serving.domain import wire
from serving.domain.wire import VersionRef


@dataclass(frozen=True, kw_only=True)
class Facts:
    """A running server process, as far as decisions and reports need it."""

    pid: int
    host: str
    rest_port: int
    grpc_port: int
    workers: int
    threads: int


@dataclass(frozen=True, kw_only=True)
class Event:
    """Base of all events."""


@dataclass(frozen=True, kw_only=True)
class Assigned(Event):
    """The control plane (or, after a restart without it, the disk) says what this replica must hold."""

    assignment: wire.Assignment


@dataclass(frozen=True, kw_only=True)
class Acknowledged(Event):
    """The control plane has taken a report and says what may still be routed here."""

    routed: frozenset[VersionRef]
    reported_at: float
    """When the facts of that report were true; an answer to older facts permits nothing."""


@dataclass(frozen=True, kw_only=True)
class Tick(Event):
    """Time has passed."""


@dataclass(frozen=True, kw_only=True)
class ShutdownRequested(Event):
    """The whole replica is to end: drain first, or at once when asked a second time."""

    at_once: bool = False


@dataclass(frozen=True, kw_only=True)
class Adopted(Event):
    """A process that an earlier agent started still serves."""

    version: wire.AssignedVersion
    facts: Facts
    answers: bool
    """Whether it answered its golden inputs correctly just now."""


@dataclass(frozen=True, kw_only=True)
class OfAttempt(Event):
    """Base of what concerns one attempt to serve one version."""

    ref: VersionRef
    attempt: int


@dataclass(frozen=True, kw_only=True)
class Pulled(OfAttempt):
    """A verified, unpacked, private copy is in place."""


@dataclass(frozen=True, kw_only=True)
class PullFailed(OfAttempt):
    error: str
    transient: bool
    """Whether trying again with nothing changed can help."""


@dataclass(frozen=True, kw_only=True)
class Started(OfAttempt):
    """Java runs; its workers are still loading."""

    facts: Facts


@dataclass(frozen=True, kw_only=True)
class StartFailed(OfAttempt):
    error: str


@dataclass(frozen=True, kw_only=True)
class Observed(OfAttempt):
    """What a look at a living process showed."""

    ready_workers: int
    worker_deaths: int
    """How many workers have died since the process started."""
    last_words: str | None = None
    """What the worker that died last said, if it said anything."""
    queued: int = 0
    memory_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class LoadFailed(OfAttempt):
    """A worker died before all were ready, with its own words."""

    error: str


@dataclass(frozen=True, kw_only=True)
class Exited(OfAttempt):
    """The process is gone without having been told to."""

    reason: str


@dataclass(frozen=True, kw_only=True)
class GoldenPassed(OfAttempt):
    """Every golden input was answered as the publisher's machine answered it."""


@dataclass(frozen=True, kw_only=True)
class GoldenFailed(OfAttempt):
    error: str


@dataclass(frozen=True, kw_only=True)
class Stopped(OfAttempt):
    """Nobody of the process's family is left."""
