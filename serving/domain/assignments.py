"""What a pool's replicas must hold: everything that traffic goes to, may soon go to, or may have to go back to."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from serving.domain import routing, wire

if TYPE_CHECKING:
    from serving.domain.facts import Facts


def wanted(facts: Facts) -> set[wire.VersionRef]:
    """Versions that must be held ready.

    They are: the stable version and the candidate of every stage; both sides of every rollout under way; versions
    replaced within the rollback window; and versions that some live gateway still gives weight to. The last makes
    "route away before unload" hold whatever else has happened.
    """
    refs: set[wire.VersionRef] = set()
    for stage in facts.stages:
        refs |= _refs(stage.model, stage.stable, stage.candidate)
    for rollout in facts.rollouts:
        refs |= _refs(rollout.model, rollout.from_version, rollout.to_version if rollout.state != "pending" else None)
    window = timedelta(seconds=facts.limits.rollback_window_s)
    refs |= {
        wire.VersionRef(model=replaced.model, version=replaced.version)
        for replaced in facts.replaced
        if facts.now - replaced.at < window
    }
    for gateway in facts.live_gateways():
        if gateway.applied is not None:
            refs |= routing.weighted(gateway.applied)
    return {ref for ref in refs if ref in facts.versions}


def of_pool(pool: str, *, refs: set[wire.VersionRef], facts: Facts) -> list[wire.VersionRef]:
    """The part of ``refs`` that belongs to a pool, in a stable order."""
    mine = (ref for ref in refs if facts.versions[ref].manifest.pool == pool)
    return sorted(mine, key=lambda ref: (ref.model, ref.version))


def _refs(model: str, *versions: int | None) -> set[wire.VersionRef]:
    return {wire.VersionRef(model=model, version=version) for version in versions if version is not None}
