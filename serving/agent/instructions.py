"""What the agent's machine asks for. Each is safe to carry out twice."""

from __future__ import annotations

from dataclasses import dataclass

from serving.domain import wire
from serving.domain.wire import VersionRef


@dataclass(frozen=True, kw_only=True)
class Instruction:
    """Base of all instructions."""


@dataclass(frozen=True, kw_only=True)
class Report(Instruction):
    """Something that the control plane should know has changed."""


@dataclass(frozen=True, kw_only=True)
class Exit(Instruction):
    """Nothing is left to stop: end the agent."""


@dataclass(frozen=True, kw_only=True)
class ForVersion(Instruction):
    """Base of what concerns one attempt to serve one version."""

    version: wire.AssignedVersion
    attempt: int

    @property
    def ref(self) -> VersionRef:
        return self.version.ref


@dataclass(frozen=True, kw_only=True)
class Pull(ForVersion):
    """Fetch, verify and unpack; answer with Pulled or PullFailed."""


@dataclass(frozen=True, kw_only=True)
class Start(ForVersion):
    """Configure and launch; answer with Started or StartFailed, then keep watching."""

    models: int
    """How many models share the replica's cores."""


@dataclass(frozen=True, kw_only=True)
class Watch(ForVersion):
    """Keep watching a process that an earlier agent started."""


@dataclass(frozen=True, kw_only=True)
class Replay(ForVersion):
    """Send the golden inputs; answer with GoldenPassed or GoldenFailed."""


@dataclass(frozen=True, kw_only=True)
class Stop(ForVersion):
    """End the process and its whole family; answer with Stopped."""

    graceful: bool = True


@dataclass(frozen=True, kw_only=True)
class Discard(ForVersion):
    """Remove the private copy: the version is not wanted here any more."""
