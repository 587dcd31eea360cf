"""How one configuration follows another without losing a request.

Files reach Envoy one by one, so their order is the whole safety:

1. endpoints and clusters, the old ones kept: nothing refers to the new ones yet;
2. once Envoy has taken those and warmed them: the routes. From here on new requests follow the new configuration,
   and clusters may lose their last endpoint;
3. clusters that no route names stay until their last request is answered, and a while longer: a request whose body
   was still arriving over gRPC when the routes changed goes by the routes that it came in under.

What Envoy refuses is put back on disk as it was, so that the folder always holds what Envoy would start from.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import time
from collections.abc import Callable, Iterable
from typing import Any

from serving.gateway import errors, files, xds
from serving.gateway.admin import CDS_STATS, RDS_STATS, Admin, Facts

log = logging.getLogger(__name__)

POLL_S = 0.01
TAKE_UP_TIMEOUT_S = 10.0

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
        try:
            emptied, others = self._changed_endpoints(target)
            awaited = self._write_endpoints(others)
            awaited |= self._write_clusters((target.clusters | removed).values())
            await self._taken(awaited, before)
            files.write(self._layout.rds, _routes(target))
            await self._taken({RDS_STATS: target.revision}, before)
            if emptied:
                await self._taken(self._write_endpoints(emptied), before)
        except errors.GatewayError:
            self._restore(target)
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
        self._write_clusters((self.current.clusters | self._retired).values())
        for name in gone:
            self._layout.endpoints(name).unlink(missing_ok=True)
        log.info("removed clusters that nothing uses any more", extra={"clusters": sorted(gone)})

    def _changed_endpoints(self, target: xds.Snapshot) -> tuple[dict[str, Resource], dict[str, Resource]]:
        """Clusters that lose their last endpoint, and all others that change.

        The first wait for the routes: the old ones may still send there.
        """
        changed = {name: new for name, new in target.endpoints.items() if new != self.current.endpoints.get(name)}
        emptied = {name: new for name, new in changed.items() if name in self.current.endpoints and not _hosts(new)}
        return emptied, {name: new for name, new in changed.items() if name not in emptied}

    def _write_endpoints(self, resources: dict[str, Resource]) -> dict[str, str]:
        """Scope → version of what Envoy has to take."""
        return {f"cluster.{name}": write_endpoints(self._layout, name, new) for name, new in resources.items()}

    def _write_clusters(self, clusters: Iterable[Resource]) -> dict[str, str]:
        return {CDS_STATS: write_clusters(self._layout, clusters)}

    async def _taken(self, awaited: dict[str, str], before: Facts) -> None:
        refused_before = before.refusals()
        deadline = time.monotonic() + TAKE_UP_TIMEOUT_S
        while True:
            facts = await self._admin.facts()
            missing = [scope for scope, version in awaited.items() if facts.version(scope) != version]
            if not missing and facts.warming == 0:
                return
            refused = [scope for scope, count in facts.refusals().items() if count > refused_before.get(scope, 0)]
            if refused:
                said = await self._admin.refusal() or "it gives no reason here; see Envoy's log"
                raise errors.ConfigurationRefused(f"Envoy refused {', '.join(refused)}: {said}")
            if time.monotonic() >= deadline:
                raise errors.ConfigurationRefused(
                    f"Envoy did not take up {', '.join(missing) or 'its clusters'} within {TAKE_UP_TIMEOUT_S:.0f} s"
                )
            await asyncio.sleep(POLL_S)

    def _restore(self, target: xds.Snapshot) -> None:
        files.write(self._layout.rds, _routes(self.current))
        self._write_clusters((self.current.clusters | self._retired).values())
        for name in target.endpoints:
            if name in self.current.endpoints:
                write_endpoints(self._layout, name, self.current.endpoints[name])
            elif name not in self._retired:
                self._layout.endpoints(name).unlink(missing_ok=True)


def write_all(layout: files.Layout, snapshot: xds.Snapshot) -> None:
    """Write a snapshot for an Envoy that is about to start."""
    for name, resource in snapshot.endpoints.items():
        write_endpoints(layout, name, resource)
    write_clusters(layout, snapshot.clusters.values())
    files.write(layout.rds, _routes(snapshot))


def write_endpoints(layout: files.Layout, name: str, resource: Resource) -> str:
    version = _digest(resource)
    files.write(layout.endpoints(name), files.discovery(version, [resource]))
    return version


def write_clusters(layout: files.Layout, clusters: Iterable[Resource]) -> str:
    listed = sorted(clusters, key=lambda resource: str(resource["name"]))
    version = _digest(listed)
    files.write(layout.cds, files.discovery(version, listed))
    return version


def _routes(snapshot: xds.Snapshot) -> Resource:
    return files.discovery(snapshot.revision, [snapshot.routes])


def _hosts(assignment: Resource) -> list[Any]:
    return [host for locality in assignment["endpoints"] for host in locality["lb_endpoints"]]


def _digest(document: Any) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()[:16]
