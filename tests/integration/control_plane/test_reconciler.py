"""What time does: windows close, parts fall silent, the control plane itself was away."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

import pytest
import sqlalchemy as sa

from serving.db import engine, migrate, published, registry, reports, stages, tables
from serving.domain import errors, facts, routing, strategies, wire
from serving.domain import stages as rules
from serving.rollout import board, promotions, reconciler
from tests.support import worlds

pytestmark = pytest.mark.integration


class Site:
    """A control plane whose clock the test sets, one replica that obeys, and one gateway that does."""

    def __init__(self, database: engine.Database) -> None:
        self.database = database
        self.now: datetime = worlds.NOON
        self.reconciler = reconciler.Reconciler(database=database, limits=facts.Limits(), clock=lambda: self.now)
        with database.exclusive() as session:
            for version in (1, 2):
                manifest = worlds.manifest(version=version)
                registry.register(session, manifest=manifest, actor="ada", now=self.now)

    def pass_time(self, seconds: float) -> None:
        """The control plane is up all the while, and hears from nobody."""
        self.now += timedelta(seconds=seconds)
        with self.database.exclusive() as session:
            session.execute(sa.update(tables.Controller).values(reconciled_at=self.now))
        self.reconciler.run()

    def promote(self, version: int) -> None:
        asked = promotions.Request(model="digits", stage=rules.Name.PRODUCTION, actor="ada", reason="")
        strategy = strategies.Strategy.ALL_AT_ONCE
        rollout = promotions.promote(self.database, asked, version=version, strategy=strategy, now=self.now)
        for _ in range(3):
            self.report()
        with self.database.read() as session:
            assert stages.rollout(session, rollout.id).state == "done"

    def report(self, replica: str = "r1") -> board.Snapshot:
        snapshot = self.reconciler.run()
        assignment = snapshot.assignment("cpu")
        servers = [worlds.server(entry.version) for entry in assignment.versions]
        said = worlds.report(*servers, replica=replica, generation=assignment.generation)
        with self.database.write() as session:
            reports.record_replica(session, said, now=self.now)
        snapshot = self.reconciler.run()
        with self.database.write() as session:
            reports.record_gateway(session, worlds.gateway_report(snapshot.config.revision), now=self.now)
        return self.reconciler.run()

    def held(self) -> list[int]:
        return [entry.version for entry in self.reconciler.run().assignment("cpu").versions]

    def endpoints(self, version: int) -> list[str]:
        (model,) = self.reconciler.run().config.models
        return [e.replica for entry in model.versions if entry.version == version for e in entry.endpoints]


@pytest.fixture
def site(database_url: str) -> Iterator[Site]:
    database = engine.Database(database_url)
    migrate.upgrade(database)
    yield Site(database)
    database.close()


def test_replaced_version_is_let_go_when_its_window_closes_and_the_generation_says_so(site: Site) -> None:
    site.promote(1)
    site.promote(2)
    before = site.reconciler.run().assignment("cpu").generation
    site.pass_time(599)
    assert site.held() == [1, 2]
    site.pass_time(2)
    assert site.held() == [2]
    assert site.reconciler.run().assignment("cpu").generation > before


def test_idempotency_key_finds_its_rollout_for_a_day_and_is_free_again_then(site: Site) -> None:
    for version in (1, 2, 1, 2):
        site.promote(version)
    asked = promotions.Request(model="digits", stage=rules.Name.PRODUCTION, actor="ada", reason="", key="k")

    def roll_back() -> str:
        return promotions.roll_back(site.database, asked, now=site.now).id

    first = roll_back()
    for _ in range(3):
        site.report()
    assert roll_back() == first
    other = promotions.Request(model="digits", stage=rules.Name.STAGING, actor="ada", reason="", key="k")
    with pytest.raises(errors.Invalid, match=first):
        promotions.roll_back(site.database, other, now=site.now)
    site.promote(2)
    site.now += timedelta(hours=25)
    assert roll_back() != first


def test_generation_moves_only_with_the_assignment(site: Site) -> None:
    site.promote(1)
    generation = site.reconciler.run().assignment("cpu").generation
    site.report()
    site.report("r2")
    site.pass_time(60)
    assert site.reconciler.run().assignment("cpu").generation == generation


def test_silent_replica_leaves_the_configuration_but_not_after_a_silence_of_our_own(site: Site) -> None:
    site.promote(1)
    site.report("r2")
    site.now += timedelta(hours=3)
    assert site.endpoints(1) == ["r1", "r2"], "nobody was there to hear them"
    site.report("r1")
    site.pass_time(20)
    site.report("r1")
    assert site.endpoints(1) == ["r1", "r2"]
    site.pass_time(11)
    assert site.endpoints(1) == ["r1"]


def test_configuration_is_never_pruned_while_in_force(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(published, "KEPT_CONFIGS", 5)
    site.promote(1)
    snapshot = site.reconciler.run()
    first, first_generation = snapshot.config, snapshot.assignment("cpu").generation
    for port in range(1, 9):
        with site.database.write() as session:
            said = worlds.report(worlds.server(1, rest_port=port), generation=first_generation)
            reports.record_replica(session, said, now=site.now)
        site.reconciler.run()
    site.reconciler.housekeeping()
    with site.database.read() as session:
        kept = session.scalar(sa.select(sa.func.count()).select_from(tables.GatewayConfig))
        assert kept == 6, "the newest 5, and the one that the gateway still serves"
        assert session.get(tables.GatewayConfig, first.revision) is not None
    snapshot = site.reconciler.run()
    (gateway,) = snapshot.facts.gateways
    assert gateway.applied == first
    assert VERSION_1 in routing.routed(worlds.report(), current=snapshot.config, gateways=[gateway])


VERSION_1 = wire.VersionRef(model="digits", version=1)


def test_part_that_is_gone_for_good_is_forgotten_but_never_a_pools_last_replicas(site: Site) -> None:
    site.promote(1)
    site.report("r2")

    def names() -> list[str]:
        with site.database.read() as session:
            return [row.name for row in reports.replicas(session)]

    site.pass_time(3700)
    site.reconciler.housekeeping()
    assert names() == ["r1", "r2"], "all are silent: their addresses are all there is"
    site.report("r1")
    site.reconciler.housekeeping()
    assert names() == ["r1"]


def test_heartbeat_that_says_nothing_new_is_no_news_and_figures_are_none_either(site: Site) -> None:
    def record(report: wire.ReplicaReport) -> bool:
        with site.database.write() as session:
            return reports.record_replica(session, report, now=site.now)

    first = worlds.report(worlds.server(1))
    assert record(first) is True
    site.now += timedelta(seconds=5)
    assert record(first) is False
    trembling = worlds.server(1, memory_bytes=7, since=worlds.NOON + timedelta(microseconds=3))
    assert record(worlds.report(trembling)) is False
    with site.database.read() as session:
        (row,) = reports.replicas(session)
        assert (row.last_seen, row.report["servers"][0]["memory_bytes"]) == (site.now, 7)
    assert record(worlds.report(worlds.server(1, rest_port=1))) is True
    assert record(worlds.report(worlds.server(1, rest_port=1), draining=True)) is True
