"""Everything that the rules may know, read at one moment.

The controller reads it from the database, hands it to the rules, and carries out what they say. The rules never look
elsewhere: what is not in :class:`Facts` cannot influence a decision, and a test can write down any world it likes.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from model_store.manifest import Manifest
from serving.domain import wire
from serving.domain.rollouts import Rollout
from serving.domain.stages import Name, Stage


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Every bound of a rollout's life, in seconds."""

    heartbeat_ttl_s: float = 30
    """A replica or gateway that has been silent for longer is no longer counted on."""
    rollback_window_s: float = 600
    """A replaced version stays loaded for this long, so that a rollback is a switch and not a load."""
    loading_timeout_s: float = 600
    """The new version must be ready on every live replica within this."""
    shifting_timeout_s: float = 60
    """Every live gateway must serve the new weights within this."""
    in_flight_timeout_s: float = 30
    """The rollout waits this long for the last requests of the old version, once no gateway routes to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    model: str
    version: int
    manifest: Manifest

    @property
    def ref(self) -> wire.VersionRef:
        return wire.VersionRef(model=self.model, version=self.version)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    report: wire.ReplicaReport
    last_seen: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Gateway:
    report: wire.GatewayReport
    last_seen: datetime
    applied: wire.GatewayConfig | None = None
    """What ``report.applied_revision`` means; ``None``: nothing, or a revision that we do not know (any more)."""

    def active(self, *, model: str, version: int) -> int:
        """Requests in flight from this gateway to the version."""
        return sum(item.requests for item in self.report.active if item.model == model and item.version == version)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replaced:
    """A version that a rollout took out of a stage."""

    model: str
    version: int
    at: datetime


@dataclass(frozen=True, kw_only=True)
class Facts:
    """One moment. It is never changed, so what is derived from it is derived once."""

    now: datetime
    observing_since: datetime
    """Since when reports could reach us without a gap: silence before that is our fault, not the sender's."""
    limits: Limits = Limits()
    models: tuple[str, ...] = ()
    versions: Mapping[wire.VersionRef, Version] = field(default_factory=dict[wire.VersionRef, Version])
    stages: tuple[Stage, ...] = ()
    rollouts: tuple[Rollout, ...] = ()
    """Active ones only; at most one for each model and stage."""
    replaced: tuple[Replaced, ...] = ()
    replicas: tuple[Replica, ...] = ()
    gateways: tuple[Gateway, ...] = ()
    generations: Mapping[str, int] = field(default_factory=dict[str, int])
    """Of each pool's newest assignment."""

    def is_live(self, last_seen: datetime) -> bool:
        return self.elapsed_s(last_seen) <= self.limits.heartbeat_ttl_s

    def elapsed_s(self, since: datetime) -> float:
        """Seconds since a moment, not counting those in which we were blind."""
        return (self.now - max(since, self.observing_since)).total_seconds()

    def serving_replicas(self, pool: str) -> list[Replica]:
        """Live replicas of the pool that are not on their way out."""
        return [
            replica
            for replica in self.replicas
            if replica.report.pool == pool and not replica.report.draining and self.is_live(replica.last_seen)
        ]

    def live_gateways(self) -> list[Gateway]:
        return [gateway for gateway in self.gateways if self.is_live(gateway.last_seen)]

    def server(self, replica: Replica, version: Version) -> wire.ServerReport | None:
        """The replica's process that holds exactly this version: one with another digest is not it."""
        found = self._servers.get((replica.report.replica, version.model, version.version))
        return found if found is not None and found.digest == version.manifest.digest else None

    def stage(self, model: str, name: Name) -> Stage | None:
        """The stage, if something was ever promoted into it."""
        return self._stages.get((model, name))

    @functools.cached_property
    def _stages(self) -> dict[tuple[str, Name], Stage]:
        return {(stage.model, stage.name): stage for stage in self.stages}

    @functools.cached_property
    def _servers(self) -> dict[tuple[str, str, int], wire.ServerReport]:
        return {
            (replica.report.replica, server.model, server.version): server
            for replica in self.replicas
            for server in replica.report.servers
        }

    def version(self, model: str, version: int) -> Version:
        return self.versions[wire.VersionRef(model=model, version=version)]
