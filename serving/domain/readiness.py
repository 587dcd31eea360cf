"""How far a version has come: which replicas hold it ready, and which gateways route a stage to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from serving.domain import routing, stages, wire

if TYPE_CHECKING:
    from serving.domain.facts import Facts

MAX_ERROR_CHARS = 16_384
"""Of one worker's traceback that is kept with a rollout; the end is the part that tells."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolReadiness:
    """A version on the live replicas of its pool: each is in exactly one of the three."""

    pool: str
    ready: tuple[str, ...]
    waiting: dict[str, str]
    """Replica → the state of its process; ``absent`` before there is one."""
    failed: dict[str, str]
    """Replica → why."""

    @property
    def is_complete(self) -> bool:
        return bool(self.ready) and not self.waiting and not self.failed

    @property
    def first_error(self) -> str | None:
        return next(iter(self.failed.values()), None)

    @property
    def summary(self) -> str:
        total = len(self.ready) + len(self.waiting) + len(self.failed)
        if total == 0:
            return f"pool {self.pool} has no live replica"
        waiting = ", ".join(f"{replica} is {state}" for replica, state in self.waiting.items())
        return f"ready on {len(self.ready)} of {total} replicas" + (f" ({waiting})" if waiting else "")

    def evidence(self) -> dict[str, Any]:
        return {
            "pool": self.pool,
            "ready": list(self.ready),
            "waiting": dict(self.waiting),
            "failed": dict(self.failed),
        }


def of(model: str, version: int, *, facts: Facts) -> PoolReadiness:
    """Readiness of a version on all replicas that a rollout has to count on.

    A replica whose report answers an older assignment is waited for: what it says about the version may be a failure
    of an earlier attempt.
    """
    known = facts.version(model, version)
    pool = known.manifest.pool
    ready: list[str] = []
    waiting: dict[str, str] = {}
    failed: dict[str, str] = {}
    for replica in facts.serving_replicas(pool):
        server = facts.server(replica, known)
        name = replica.report.replica
        if server is None:
            waiting[name] = "absent"
        elif server.state is wire.ServerState.FAILED and replica.report.generation >= facts.generations.get(pool, 0):
            failed[name] = (server.error or "the agent gave no reason")[-MAX_ERROR_CHARS:]
        elif routing.is_ready(server):
            ready.append(name)
        else:
            waiting[name] = server.state
    return PoolReadiness(pool=pool, ready=tuple(ready), waiting=waiting, failed=failed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Uptake:
    """Which live gateways serve a stage from a version alone."""

    applied: tuple[str, ...]
    waiting: dict[str, str]

    @property
    def is_complete(self) -> bool:
        return bool(self.applied) and not self.waiting

    @property
    def summary(self) -> str:
        if not self.applied and not self.waiting:
            return "no gateway has reported"
        waiting = ", ".join(f"{gateway}: {why}" for gateway, why in self.waiting.items())
        total = len(self.applied) + len(self.waiting)
        return f"routed by {len(self.applied)} of {total} gateways" + (f" ({waiting})" if waiting else "")

    def evidence(self) -> dict[str, Any]:
        return {"gateways_applied": list(self.applied), "gateways_waiting": dict(self.waiting)}


def uptake(model: str, stage: stages.Name, version: int, *, facts: Facts) -> Uptake:
    """Which live gateways say that they serve the stage from the version alone."""
    applied: list[str] = []
    waiting: dict[str, str] = {}
    for gateway in facts.live_gateways():
        name = gateway.report.gateway
        if gateway.applied is not None and routing.weights_of(gateway.applied, model, stage) == {version: 10_000}:
            applied.append(name)
        else:
            waiting[name] = gateway.report.error or "has not applied it yet"
    return Uptake(applied=tuple(applied), waiting=waiting)
