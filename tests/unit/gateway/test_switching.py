"""Order and bookkeeping of a switch, against an admin interface that only remembers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from serving.domain import wire
from serving.gateway import admin, clusters, errors, files, switching, xds
from tests.support import gateway as g

pytestmark = pytest.mark.anyio

ENDPOINT = wire.Endpoint(replica="a", host="127.0.0.1", rest_port=8080, grpc_port=7070)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Envoy:
    """Takes whatever is on disk at once, and remembers what it saw at each look."""

    def __init__(self, layout: files.Layout) -> None:
        self.layout = layout
        self.refuse_routes = False
        self.refuse_clusters = False
        self.looks: list[tuple[dict[str, bool], str]] = []
        """(cluster → has endpoints, revision of the routes), without repetitions."""
        self.refused = 0
        self.taken = {"cds": "", "rds": ""}

    async def facts(self) -> admin.Facts:
        documents = {name: json.loads(getattr(self.layout, name).read_text()) for name in ("cds", "rds")}
        found = {r["name"]: clusters.has_endpoints(r) for r in documents["cds"]["resources"]}
        look = found, documents["rds"]["version_info"]
        if not self.looks or self.looks[-1] != look:
            self.looks.append(look)
        refusing = {"cds": self.refuse_clusters, "rds": self.refuse_routes}
        for name, document in documents.items():
            if document["version_info"] != self.taken[name] and refusing[name]:
                self.refused += 1
            else:
                self.taken[name] = document["version_info"]
        return admin.Facts(
            values={
                f"{admin.CDS_STATS}.version_text": f'"{self.taken["cds"]}"',
                f"{admin.RDS_STATS}.version_text": f'"{self.taken["rds"]}"',
                f"{admin.CDS_STATS}.update_rejected": str(self.refused if self.refuse_clusters else 0),
                f"{admin.RDS_STATS}.update_rejected": str(self.refused if self.refuse_routes else 0),
            }
        )

    versions = facts


def snapshot(*models: wire.GatewayModel) -> xds.Snapshot:
    return xds.snapshot(g.config(*models), xds.Options())


def begin(folder: Path, current: xds.Snapshot, **options: Any) -> tuple[switching.Switch, Envoy]:
    layout = files.Layout(root=folder)
    layout.create()
    switching.write_all(layout, current)
    envoy = Envoy(layout)
    return switching.Switch(layout=layout, admin=envoy, current=current, **options), envoy  # type: ignore[arg-type]


FIRST = snapshot(g.model("m", [g.version(1, [ENDPOINT])], production=1))
SECOND = snapshot(g.model("m", [g.version(2, [ENDPOINT])], production=2))


async def test_a_cluster_stands_before_its_route_and_outlives_it(tmp_path: Path) -> None:
    switch, envoy = begin(tmp_path, FIRST)
    await switch.apply(SECOND)
    for found, revision in envoy.looks:
        needed = FIRST if revision == FIRST.revision else SECOND
        assert set(needed.clusters) <= set(found)
    assert envoy.looks[-1][1] == SECOND.revision
    assert switch.retired == set(FIRST.clusters)


async def test_a_cluster_loses_its_last_endpoint_only_after_the_routes_have_moved(tmp_path: Path) -> None:
    both = [g.version(1, [ENDPOINT]), g.version(2, [ENDPOINT])]
    switch, envoy = begin(tmp_path, before := snapshot(g.model("m", both, production=1)))
    await switch.apply(snapshot(g.model("m", [g.version(1), g.version(2, [ENDPOINT])], production=2)))
    for found, revision in envoy.looks:
        assert found["m@1@rest"] or revision != before.revision
    assert not envoy.looks[-1][0]["m@1@rest"]


async def test_a_retired_cluster_goes_once_it_was_idle_long_enough(tmp_path: Path) -> None:
    now = 0.0
    switch, envoy = begin(tmp_path, FIRST, hold_s=30, clock=lambda: now)
    await switch.apply(SECOND)
    busy = admin.Facts(values={"cluster.m@1@grpc.upstream_rq_active": "1"})
    idle = admin.Facts(values={})
    for now, facts in [(0, idle), (29, busy), (60, busy), (61, idle), (90, idle)]:
        switch.retire(facts)
        assert "m@1@grpc" in switch.retired, now
    now = 91
    switch.retire(idle)
    assert switch.retired == set()
    await envoy.facts()
    assert set(envoy.looks[-1][0]) == set(SECOND.clusters)


async def test_a_version_that_comes_back_is_no_longer_retired(tmp_path: Path) -> None:
    switch, _ = begin(tmp_path, FIRST)
    await switch.apply(SECOND)
    await switch.apply(FIRST)
    assert switch.retired == set(SECOND.clusters)


@pytest.mark.parametrize("refusing", ["refuse_clusters", "refuse_routes"])
async def test_what_envoy_refuses_is_taken_off_the_disk_again(tmp_path: Path, refusing: str) -> None:
    switch, envoy = begin(tmp_path, FIRST)
    await envoy.facts()
    before = {path: path.read_bytes() for path in (envoy.layout.cds, envoy.layout.rds)}
    setattr(envoy, refusing, True)
    with pytest.raises(errors.ConfigurationRefused):
        await switch.apply(SECOND)
    assert switch.current is FIRST
    assert {path: path.read_bytes() for path in before} == before


def test_requests_in_flight_are_counted_by_version_over_both_protocols() -> None:
    facts = admin.Facts(
        values={
            "cluster.a.b@3@rest.upstream_rq_active": "2",
            "cluster.a.b@3@grpc.upstream_rq_active": "1",
            "cluster.a.b@3@rest.upstream_rq_pending_active": "4",
            "cluster.c@1@rest.upstream_rq_active": "0",
            "cluster.oip_adapter.upstream_rq_active": "9",
        }
    )
    assert facts.active_requests() == [wire.ActiveRequests(model="a.b", version=3, requests=7)]
