"""How one configuration follows another without losing a request.

Files reach Envoy one by one, so their order is the whole safety:

1. the clusters, the old ones kept: nothing refers to the new ones yet;
2. once Envoy has taken those and warmed them: the routes. From here on new requests follow the new configuration,
   and clusters may lose their last endpoint;
3. clusters that no route names stay until their last request is answered, and a while longer: a request whose body
   was still arriving over gRPC when the routes changed goes by the routes that it came in under.

What Envoy refuses is put back on disk as it was, so that the folder always holds what Envoy would start from.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Callable
from typing import Any

import orjson

from serving.gateway import clusters, errors, files, xds
from serving.gateway.admin import CDS_STATS, RDS_STATS, Admin, Facts

log = logging.getLogger(__name__)

POLL_S = 0.01
TAKE_UP_TIMEOUT_S = 10.0

LOOK_CLOSER_S = 0.25
"""How often a refusal is looked for: reading counters keeps Envoy's main thread from its work."""

SETTLE_S = 0.05
"""Envoy's main thread says "applied" a moment before its workers have all heard of it."""

HOLD_S = 30.0
"""How long a cluster outlives its last route and its last request."""

Resource = dict[str, Any]


class Switch:
    """Moves one Envoy from configuration to configuration. One task uses it."""

    def __init__(
        self,
        *,
        layout: files.Layout,
        admin: Admin,
        current: xds.Snapshot,
        hold_s: float = HOLD_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._layout = layout
        self._admin = admin
        self._hold_s = hold_s
        self._clock = clock
        self.current = current
        """What Envoy took last; always what is on disk, but for retired clusters."""
        self._retired: dict[str, Resource] = {}
        """Clusters without a route; never among ``current.clusters``."""
        self._idle_since: dict[str, float] = {}
        """When a retired cluster was last seen without requests, in seconds of the clock; keys are in ``_retired``."""

    @property
    def retired(self) -> frozenset[str]:
        return frozenset(self._retired)

    async def apply(self, target: xds.Snapshot) -> None:
        """Bring Envoy to ``target``; returns once it serves that.

        Raises:
            ConfigurationRefused: Envoy did not take it; it serves ``current`` still.
            EnvoyUnreachable: Envoy is away; what is on disk is ``current`` still.
        """
        before = await self._admin.facts()
        known = self.current.clusters | self._retired
        removed = {name: value for name, value in known.items() if name not in target.clusters}
        wanted = target.clusters | removed
        emptied = {
            name: known[name]
            for name, resource in target.clusters.items()
            if name in known and clusters.has_endpoints(known[name]) and not clusters.has_endpoints(resource)
        }
        try:
            # The old routes may still send to a cluster that loses its last endpoint.
            looks_up = any(resource["type"] == "STRICT_DNS" for resource in target.clusters.values())
            await self._taken(CDS_STATS, write_clusters(self._layout, wanted | emptied), before, may_warm=looks_up)
            await self._taken(RDS_STATS, write_routes(self._layout, target), before)
            if emptied:
                await self._taken(CDS_STATS, write_clusters(self._layout, wanted), before)
        except errors.GatewayError:
            write_routes(self._layout, self.current)
            write_clusters(self._layout, known)
            raise
        await asyncio.sleep(SETTLE_S)
        self._retired = removed
        self._idle_since = {name: since for name, since in self._idle_since.items() if name in removed}
        self.current = target

    def retire(self, facts: Facts) -> None:
        """Take away clusters that nobody has used for ``hold_s``."""
        active = facts.values
        now = self._clock()
        for name in self._retired:
            requests = sum(
                int(active.get(f"cluster.{name}.upstream_rq_{kind}", "0")) for kind in ("active", "pending_active")
            )
            if requests:
                self._idle_since.pop(name, None)
            else:
                self._idle_since.setdefault(name, now)
        gone = {name for name, since in self._idle_since.items() if now - since >= self._hold_s}
        if not gone:
            return
        for name in gone:
            del self._retired[name], self._idle_since[name]
        write_clusters(self._layout, self.current.clusters | self._retired)
        log.info("removed clusters that nothing uses any more", extra={"clusters": sorted(gone)})

    async def _taken(self, scope: str, version: str, before: Facts, *, may_warm: bool = False) -> None:
        """Wait until Envoy says that it serves a file; ``may_warm``: and that it has looked up all names in it."""
        started = time.monotonic()
        look_closer_at = started + LOOK_CLOSER_S
        while True:
            is_taken = (await self._admin.versions()).version(scope) == version
            if is_taken and not may_warm:
                return
            now = time.monotonic()
            if is_taken or now >= look_closer_at:
                look_closer_at = now + LOOK_CLOSER_S
                facts = await self._admin.facts()
                if is_taken and facts.warming == 0:
                    return
                if facts.refusals(scope) > before.refusals(scope):
                    raise errors.ConfigurationRefused("Envoy refused the configuration")
                if now - started >= TAKE_UP_TIMEOUT_S:
                    raise errors.ConfigurationRefused(
                        f"Envoy did not take up the configuration within {TAKE_UP_TIMEOUT_S:.0f} s (waited for {scope})"
                    )
            await asyncio.sleep(POLL_S)


def write_all(layout: files.Layout, snapshot: xds.Snapshot) -> None:
    """Write a snapshot for an Envoy that is about to start."""
    write_clusters(layout, snapshot.clusters)
    write_routes(layout, snapshot)


def write_clusters(layout: files.Layout, resources: dict[str, Resource]) -> str:
    """Returns the version that Envoy says back."""
    listed = [resources[name] for name in sorted(resources)]
    version = hashlib.sha256(orjson.dumps(listed, option=orjson.OPT_SORT_KEYS)).hexdigest()[:16]
    files.write(layout.cds, files.discovery(version, listed))
    return version


def write_routes(layout: files.Layout, snapshot: xds.Snapshot) -> str:
    """Returns the version that Envoy says back."""
    files.write(layout.rds, files.discovery(snapshot.revision, [snapshot.routes]))
    return snapshot.revision
