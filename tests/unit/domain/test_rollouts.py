from __future__ import annotations

import dataclasses
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as some

from serving.domain import errors, facts, rollouts, stages, wire
from serving.domain.wire import ServerState
from tests.support import worlds

PRODUCTION = stages.Name.PRODUCTION


def serving_first_version(**limits: float) -> worlds.World:
    world = worlds.World(**limits)
    world.promote(1)
    return world


def loading_second_version(**limits: float) -> worlds.World:
    world = serving_first_version(**limits)
    world.start(2)
    world.settle()
    return world


def shifting_to_second_version(**limits: float) -> worlds.World:
    world = loading_second_version(**limits)
    world.report(worlds.server(1), worlds.server(2))
    assert world.settle().state is rollouts.State.SHIFTING
    return world


def test_pending_rollout_makes_its_version_the_candidate_and_leaves_traffic_alone() -> None:
    world = loading_second_version()
    assert world.rollout.state is rollouts.State.LOADING
    assert (world.stage().stable, world.stage().candidate) == (1, 2)


def test_traffic_moves_only_once_every_live_replica_is_ready() -> None:
    world = loading_second_version()
    world.report(worlds.server(1), worlds.server(2))
    world.report(worlds.server(1), worlds.server(2, ServerState.WARMING), replica="r2")
    assert world.settle().state is rollouts.State.LOADING
    assert world.rollout.progress["waiting"] == {"r2": "warming"}
    assert world.rollout.progress["message"] == "ready on 1 of 2 replicas (r2 is warming)"

    world.report(worlds.server(1), worlds.server(2), replica="r2")
    assert world.settle().state is rollouts.State.SHIFTING
    assert (world.stage().stable, world.stage().candidate) == (2, None)


def test_replica_that_is_silent_or_shutting_down_is_not_waited_for() -> None:
    world = loading_second_version()
    world.report(worlds.server(1), replica="silent")
    world.report(worlds.server(1), replica="leaving", draining=True)
    world.pass_time(31)
    world.report(worlds.server(1), worlds.server(2))
    world.report(worlds.server(1), replica="leaving", draining=True)
    assert world.settle().state is rollouts.State.SHIFTING


def test_version_with_another_digest_does_not_count_as_ready() -> None:
    world = loading_second_version()
    world.report(worlds.server(1), worlds.server(2, digest=worlds.digest(9)))
    assert world.settle().state is rollouts.State.LOADING


def test_version_that_fails_to_load_fails_the_rollout_with_the_workers_traceback_and_the_old_version_stays() -> None:
    world = loading_second_version()
    world.report(worlds.server(1), worlds.server(2, ServerState.FAILED, error="Traceback: no module named frobnicate"))
    step = world.step()
    assert step.rollout.state is rollouts.State.FAILED
    assert step.rollout.error is not None and "no module named frobnicate" in step.rollout.error
    assert (step.stage.stable, step.stage.candidate) == (1, None)
    assert step.change is not None and step.change.evidence["failed"] == {"r1": "Traceback: no module named frobnicate"}


def test_failure_that_answers_an_older_assignment_is_not_held_against_a_new_rollout() -> None:
    world = loading_second_version()
    world.generation = 5
    world.report(worlds.server(1), worlds.server(2, ServerState.FAILED, error="from before"), generation=4)
    assert world.settle().state is rollouts.State.LOADING
    world.report(worlds.server(1), worlds.server(2, ServerState.FAILED, error="again"), generation=5)
    assert world.settle().state is rollouts.State.FAILED


def test_loading_that_takes_too_long_fails_and_names_the_replica_that_it_waited_for() -> None:
    world = loading_second_version(loading_timeout_s=600)
    for _ in range(60):
        world.pass_time(10)
        world.report(worlds.server(1), worlds.server(2, ServerState.PULLING))
        assert world.settle().state is rollouts.State.LOADING
    world.pass_time(1)
    world.report(worlds.server(1), worlds.server(2, ServerState.PULLING))
    assert world.settle().state is rollouts.State.FAILED
    assert "600 s" in str(world.rollout.error) and "r1 is pulling" in str(world.rollout.error)


def test_pool_without_a_live_replica_is_waited_for_and_said() -> None:
    world = worlds.World()
    world.start(1)
    assert world.settle().state is rollouts.State.LOADING
    assert world.rollout.progress["message"] == "pool cpu has no live replica"


def test_time_in_which_the_control_plane_was_away_does_not_count_against_a_rollout() -> None:
    world = loading_second_version(loading_timeout_s=600)
    world.pass_time(3600)
    world.observing_since = world.now
    assert world.settle().state is rollouts.State.LOADING


def test_done_only_when_every_live_gateway_serves_the_new_weights() -> None:
    world = serving_first_version()
    world.apply_config("g2")
    world.start(2)
    world.settle()
    world.report(worlds.server(1), worlds.server(2))
    assert world.settle().state is rollouts.State.SHIFTING
    world.apply_config("g1")
    assert world.settle().state is rollouts.State.SHIFTING
    assert world.rollout.progress["gateways_waiting"] == {"g2": "has not applied it yet"}
    world.apply_config("g2")
    assert world.settle().state is rollouts.State.DONE


def test_any_later_configuration_with_the_same_weights_counts_as_applied() -> None:
    world = shifting_to_second_version()
    world.report(worlds.server(1), worlds.server(2), replica="r2")
    world.apply_config()
    assert world.settle().state is rollouts.State.DONE


def test_done_waits_for_the_old_versions_requests_but_not_for_ever() -> None:
    world = shifting_to_second_version(in_flight_timeout_s=30)
    world.apply_config(active={1: 3})
    assert world.settle().state is rollouts.State.SHIFTING
    assert world.rollout.progress["message"] == "3 requests still with version 1"
    world.pass_time(29)
    world.apply_config(active={1: 1})
    assert world.settle().state is rollouts.State.SHIFTING
    world.pass_time(2)
    world.apply_config(active={1: 1})
    assert world.settle().state is rollouts.State.DONE
    assert world.rollout.progress["requests_left_with_old_version"] == 1


def test_gateway_that_does_not_take_up_the_weights_in_time_has_traffic_moved_back() -> None:
    world = shifting_to_second_version(shifting_timeout_s=60)
    refused = worlds.gateway_report(world.gateways["g1"].report.applied_revision, error="Envoy: bad cluster")
    for _ in range(4):
        world.pass_time(20)
        world.gateways["g1"] = dataclasses.replace(world.gateways["g1"], report=refused, last_seen=world.now)
        world.report(worlds.server(1), worlds.server(2))
        world.settle()
    assert world.rollout.state is rollouts.State.ROLLED_BACK
    assert "Envoy: bad cluster" in str(world.rollout.error)
    assert (world.stage().stable, world.stage().candidate, world.stage().last_good) == (1, None, None)


def test_version_that_dies_everywhere_while_traffic_moves_has_it_moved_back() -> None:
    world = shifting_to_second_version()
    world.report(worlds.server(1), worlds.server(2, ServerState.FAILED, error="CUDA error"))
    assert world.settle().state is rollouts.State.ROLLED_BACK
    assert world.stage().stable == 1
    assert "CUDA error" in str(world.rollout.error)


def test_rollback_returns_to_the_version_before_and_a_second_one_further_back() -> None:
    world = worlds.World()
    for version in (1, 2, 3):
        world.promote(version)
    assert world.stage().last_good == 2
    world.promote(2, kind=rollouts.Kind.ROLLBACK)
    assert (world.stage().stable, world.stage().last_good) == (2, 1)
    world.promote(1, kind=rollouts.Kind.ROLLBACK)
    assert (world.stage().stable, world.stage().last_good) == (1, None)


@pytest.mark.parametrize("prepare", [loading_second_version, shifting_to_second_version])
def test_abort_restores_the_stage_wherever_the_rollout_stands(prepare) -> None:
    world = prepare()
    step = world.abort("wrong one")
    assert step.rollout.state is rollouts.State.ROLLED_BACK
    assert step.rollout.error == "aborted by ada: wrong one"
    assert (step.stage.stable, step.stage.candidate, step.stage.history) == (1, None, ())


def test_ended_rollout_can_neither_be_aborted_nor_moved_by_facts() -> None:
    world = serving_first_version()
    assert world.rollout.state is rollouts.State.DONE
    with pytest.raises(errors.Conflict, match="already done"):
        world.abort()
    world.pass_time(10_000)
    before = world.rollout
    assert world.step() == rollouts.Step(rollout=before, stage=world.stage())


replica_state = some.sampled_from([None, *ServerState])
moves = some.lists(
    some.one_of(
        some.tuples(some.just("report"), replica_state, replica_state),
        some.tuples(some.just("gateway"), some.booleans(), some.integers(0, 2)),
        some.tuples(some.just("time"), some.integers(0, 400), some.none()),
        some.tuples(some.just("abort"), some.none(), some.none()),
        some.tuples(some.just("blind"), some.none(), some.none()),
    ),
    max_size=25,
)


def act(world: worlds.World, kind: str, first: object, second: object) -> None:
    match kind:
        case "report":
            states = {1: first, 2: second}
            servers = [worlds.server(v, ServerState(str(s)), error="x") for v, s in states.items() if s is not None]
            world.report(*servers)
        case "gateway":
            if first:
                world.apply_config(active={1: int(str(second))})
        case "time":
            world.pass_time(int(str(first)))
        case "abort":
            if not world.rollout.state.is_terminal:
                world.abort()
        case _:
            world.observing_since = world.now


@given(moves)
def test_whatever_happens_the_stage_serves_a_good_version_and_an_ended_rollout_left_it_clean(story) -> None:
    world = loading_second_version()
    for kind, first, second in story:
        act(world, kind, first, second)
        was = world.rollout
        world.settle()
        stage, rollout = world.stage(), world.rollout
        if was.state.is_terminal:
            assert rollout == was
        match rollout.state:
            case rollouts.State.LOADING:
                assert (stage.stable, stage.candidate) == (1, 2)
            case rollouts.State.SHIFTING | rollouts.State.DONE:
                assert (stage.stable, stage.candidate, stage.last_good) == (2, None, 1)
            case _:
                assert (stage.stable, stage.candidate, stage.last_good) == (1, None, None)
        assert (rollout.error is not None) == (rollout.state in (rollouts.State.FAILED, rollouts.State.ROLLED_BACK))


@given(moves)
def test_deciding_twice_on_the_same_facts_changes_nothing(story) -> None:
    world = loading_second_version()
    for kind, first, second in story:
        act(world, kind, first, second)
        world.settle()
        again = rollouts.advance(world.rollout, stage=world.stage(), facts=world.facts)
        assert again == rollouts.Step(rollout=world.rollout, stage=world.stage())


def test_history_is_bounded_and_never_holds_the_stable_version() -> None:
    stage = stages.Stage(model="digits", name=PRODUCTION)
    for version in [*range(1, 40), 5, 7]:
        stage = stage.promoted(version, at=worlds.NOON)
    assert stage.stable == 7
    assert len(stage.history) <= stages.HISTORY_LIMIT
    assert 7 not in stage.history and stage.last_good == 5


def test_silence_is_measured_from_when_somebody_listened() -> None:
    world = facts.Facts(now=worlds.NOON, observing_since=worlds.NOON - timedelta(seconds=5))
    assert world.is_live(worlds.NOON - timedelta(hours=1))
    assert not facts.Facts(now=worlds.NOON, observing_since=worlds.NOON - timedelta(hours=2)).is_live(
        worlds.NOON - timedelta(hours=1)
    )


def test_server_without_ports_is_not_ready() -> None:
    world = loading_second_version()
    world.report(worlds.server(1), worlds.server(2, grpc_port=None))
    assert world.settle().state is rollouts.State.LOADING
    assert isinstance(world.replicas["r1"].report, wire.ReplicaReport)
