"""The control plane dies at any point, its database goes and comes back: nothing is lost."""

from __future__ import annotations

import concurrent.futures
from pathlib import Path

import pytest
import sqlalchemy as sa

from serving.db import engine, migrate, registry, reports, stages
from serving.domain import facts, rollouts, strategies
from serving.domain import stages as rules
from serving.rollout import board, controller, promotions, reconciler
from tests.support import control_plane, postgres, waiting, worlds

pytestmark = pytest.mark.integration

PRODUCTION = rules.Name.PRODUCTION


def step(database: engine.Database, *, dies: bool = False) -> board.Snapshot | None:
    """One transaction of a controller that was never there before, and is never heard of again."""
    fresh = reconciler.Reconciler(database=database, limits=facts.Limits())
    if not dies:
        return fresh.step()[0]
    with pytest.raises(ZeroDivisionError):
        fresh._publish = lambda session, world: (session.flush(), 1 / 0)  # type: ignore[method-assign]
        fresh.step()
    return None


def test_rollout_goes_on_from_any_point_with_a_controller_that_knows_nothing(database_url) -> None:
    database = engine.Database(database_url)
    migrate.upgrade(database)
    now = reconciler.utc_now()
    with database.exclusive() as session:
        for version in (1, 2):
            registry.register(session, manifest=worlds.manifest(version=version), actor="ada", now=now)

    def state() -> tuple[str, int | None]:
        with database.read() as session:
            rollout = stages.page(session, before=None, limit=1)[0]
            return rollout.state, stages.stage(session, "digits", PRODUCTION).stable

    def expect(wanted: tuple[str, int | None], before: tuple[str, int | None]) -> board.Snapshot:
        step(database, dies=True)
        assert state() == before, "a step that dies never happened"
        snapshot = step(database)
        assert snapshot is not None
        assert state() == wanted
        return snapshot

    stable: int | None = None
    for version in (1, 2):
        request = promotions.Request(model="digits", stage=PRODUCTION, actor="ada", reason="")
        promotions.promote(
            database, request, version=version, strategy=strategies.Strategy.ALL_AT_ONCE, now=reconciler.utc_now()
        )
        snapshot = expect(("loading", stable), ("pending", stable))
        generation = snapshot.assignment("cpu").generation
        with database.write() as session:
            servers = [worlds.server(number) for number in range(1, version + 1)]
            said = worlds.report(*servers, generation=generation)
            reports.record_replica(session, said, now=reconciler.utc_now())
        snapshot = expect(("shifting", version), ("loading", stable))
        with database.write() as session:
            applied = worlds.gateway_report(snapshot.config.revision)
            reports.record_gateway(session, applied, now=reconciler.utc_now())
        expect(("done", version), ("shifting", version))
        stable = version
    database.close()


@pytest.mark.parametrize("state", ["pending", "loading", "shifting"])
def test_killed_control_plane_takes_its_rollout_up_again(database_url, tmp_path: Path, state: str) -> None:
    process = control_plane.Process(database_url, log=tmp_path / "log")
    client = process.client
    try:
        process.start()
        client.register(1).raise_for_status()
        client.obey_as_replica()
        client.obey_as_gateway()
        rollout = client.promote(1).json()["id"]
        if state != "pending":
            client.wait_for(rollout, "loading")
        if state == "shifting":
            client.follow_as_replica(rollout, "shifting")
        process.kill()
        process.start()
        assert client.complete(rollout)["id"] == rollout
        assert process.stop() == 0
    finally:
        process.close()


def test_control_planes_that_start_at_once_migrate_once_and_work_together(database_url, tmp_path: Path) -> None:
    both = [control_plane.Process(database_url, log=tmp_path / f"log{n}") for n in (1, 2)]
    try:
        with concurrent.futures.ThreadPoolExecutor(2) as starters:
            list(starters.map(lambda process: process.start(), both))
        first, second = (process.client for process in both)
        first.register(1).raise_for_status()
        rollout = second.promote(1).json()["id"]
        waiting.wait_until(lambda: second.assignment().versions, timeout_s=10, what="the assignment at the second")
        second.follow_as_replica(rollout, "shifting")
        waiting.wait_until(lambda: first.config().models[0].stages[0].weights, timeout_s=10, what="weights")
        assert first.finish_as_gateway(rollout)
    finally:
        for process in both:
            process.close()


def test_news_at_one_control_plane_ends_the_long_polls_of_another_at_once(
    postgres_server: postgres.Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = postgres_server.database()
    monkeypatch.setattr(controller, "TICK_S", 30.0)
    process = control_plane.Process(url, log=tmp_path / "log")
    try:
        process.start()
        with control_plane.in_thread(url) as other, concurrent.futures.ThreadPoolExecutor(1) as waiter:
            process.client.register(1).raise_for_status()
            # The other is known to listen once it has heard something.
            waiting.wait_until(lambda: other.config().models, timeout_s=10, what="news to reach the other")
            generation = other.assignment().generation
            poll = waiter.submit(other.assignment, generation=generation, wait_s=20)
            process.client.promote(1).raise_for_status()
            assert [entry.version for entry in poll.result(timeout=5).versions] == [1]
    finally:
        process.close()


def test_database_that_goes_and_comes_back_costs_503s_and_nothing_else() -> None:
    server = postgres.Postgres()
    try:
        with control_plane.in_thread(server.database()) as client:
            client.register(1).raise_for_status()
            client.complete(client.promote(1).json()["id"])
            client.register(2).raise_for_status()
            rollout = client.promote(2).json()["id"]
            client.wait_for(rollout, "loading")
            held = waiting.wait_until(
                lambda: next((a for a in [client.assignment()] if len(a.versions) == 2), None),
                timeout_s=10,
                what="the assignment",
            )
            server.stop()
            answer = client.get("/v1/models")
            assert (answer.status_code, answer.json()["type"]) == (503, "urn:slipway:error:database-unavailable")
            assert int(answer.headers["retry-after"]) > 0
            assert client.get("/readyz").status_code == 503
            assert client.get("/healthz").status_code == 200
            assert client.get("/metrics").status_code == 200
            assert client.put("/v1/replicas/r1", json=worlds.report().model_dump(mode="json")).status_code == 503
            assert client.assignment() == held, "agents go on to get the last good answer"

            server.start()
            waiting.wait_until(lambda: client.get("/readyz").status_code == 200, timeout_s=20, what="readiness")
            assert client.complete(rollout)["state"] == "done"
    finally:
        server.close()


def test_control_plane_that_starts_before_its_database_waits_for_it(tmp_path: Path) -> None:
    server = postgres.Postgres()
    try:
        url = server.database()
        server.stop()
        with control_plane.in_thread(url) as client:
            assert client.get("/healthz").status_code == 200
            assert client.get("/readyz").status_code == 503
            assert client.get("/v1/pools/cpu/assignment").status_code == 503
            server.start()
            waiting.wait_until(lambda: client.get("/readyz").status_code == 200, timeout_s=20, what="readiness")
            assert client.register(1).status_code == 201
    finally:
        server.close()


def test_locked_sqlite_answers_503_within_its_bound_and_recovers(tmp_path: Path) -> None:
    file = tmp_path / "control.db"
    with control_plane.in_thread(f"sqlite:///{file}") as client:
        client.register(1).raise_for_status()
        locker = sa.create_engine(f"sqlite:///{file}", isolation_level="AUTOCOMMIT")
        with locker.connect() as connection:
            connection.exec_driver_sql("BEGIN EXCLUSIVE")
            answer = client.promote(1)
            assert (answer.status_code, answer.json()["type"]) == (503, "urn:slipway:error:database-unavailable")
            assert client.get("/v1/models").status_code == 200, "reading goes on"
            connection.exec_driver_sql("ROLLBACK")
        locker.dispose()
        waiting.wait_until(lambda: client.promote(1).status_code == 202, timeout_s=10, what="the promotion")


def test_database_of_a_newer_release_is_refused_with_the_reason(database_url) -> None:
    database = engine.Database(database_url)
    migrate.upgrade(database)
    with database.write() as session:
        session.execute(sa.text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(migrate.errors.MigrationFailed, match="newer"):
        migrate.upgrade(database)
    database.close()


def test_events_can_neither_be_changed_nor_deleted(database_url) -> None:
    database = engine.Database(database_url)
    migrate.upgrade(database)
    with database.exclusive() as session:
        registry.create_model(session, name="digits", description="", actor="ada", now=reconciler.utc_now())
    for statement in ("UPDATE events SET actor = 'mallory'", "DELETE FROM events"):
        with pytest.raises(sa.exc.DatabaseError, match="append-only"), database.write() as session:
            session.execute(sa.text(statement))
    database.close()


def test_second_active_rollout_is_refused_by_the_database_itself(database_url) -> None:
    database = engine.Database(database_url)
    migrate.upgrade(database)
    world = worlds.World()
    world.start(1)
    world.start(2)
    with database.exclusive() as session:
        for version in (1, 2):
            manifest = worlds.manifest(version=version)
            registry.register(session, manifest=manifest, actor="ada", now=worlds.NOON)
        stages.add_rollout(session, world.rollouts[0], request_key=None)
    with pytest.raises(sa.exc.IntegrityError), database.exclusive() as session:
        stages.add_rollout(session, world.rollouts[1], request_key=None)
    assert world.rollouts[0].state is rollouts.State.PENDING
    database.close()
