from __future__ import annotations

from serving.domain import assignments, rollouts, stages
from serving.domain.wire import VersionRef
from tests.support import worlds


def wanted(world: worlds.World) -> set[int]:
    return {ref.version for ref in assignments.wanted(world.facts)}


def test_nothing_is_held_before_something_was_promoted() -> None:
    assert wanted(worlds.World()) == set()


def test_stable_of_every_stage_and_the_candidate_are_held() -> None:
    world = worlds.World()
    world.promote(1)
    world.make_stable(2, stages.Name.STAGING)
    world.start(3)
    world.settle()
    assert wanted(world) == {1, 2, 3}


def test_pending_rollout_does_not_ask_for_its_version_yet() -> None:
    world = worlds.World()
    world.start(1)
    assert wanted(world) == set()


def test_replaced_version_stays_warm_for_the_rollback_window_and_not_longer() -> None:
    world = worlds.World(rollback_window_s=600)
    world.promote(1)
    world.promote(2)
    world.pass_time(599)
    assert wanted(world) == {1, 2}
    world.pass_time(1)
    assert wanted(world) == {2}


def test_version_that_a_live_gateway_still_gives_weight_to_is_held_although_the_window_has_passed() -> None:
    world = worlds.World(rollback_window_s=0)
    world.promote(1)
    world.start(2)
    world.settle()
    world.report(worlds.server(1), worlds.server(2))
    world.settle()
    assert world.rollout.state is rollouts.State.SHIFTING
    world.abort()
    assert wanted(world) == {1}
    world.start(2)
    world.settle()
    world.settle()
    world.apply_config()
    world.abort()
    assert wanted(world) == {1, 2}
    world.apply_config()
    assert wanted(world) == {1}


def test_failed_candidate_is_let_go() -> None:
    world = worlds.World()
    world.promote(1)
    world.start(2)
    world.settle()
    world.report(worlds.server(1), worlds.server(2, "failed", error="no"))  # pyright: ignore[reportArgumentType]
    world.settle()
    assert wanted(world) == {1}


def test_a_pool_gets_only_versions_of_its_own_in_a_stable_order() -> None:
    world = worlds.World(versions=3)
    other = worlds.manifest(version=2, pool="gpu")
    ref = VersionRef(model="digits", version=2)
    world.versions[ref] = type(world.versions[ref])(model="digits", version=2, manifest=other)
    refs = set(world.versions)
    assert [str(r) for r in assignments.of_pool("cpu", refs=refs, facts=world.facts)] == ["digits@1", "digits@3"]
    assert [str(r) for r in assignments.of_pool("gpu", refs=refs, facts=world.facts)] == ["digits@2"]
