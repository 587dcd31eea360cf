from __future__ import annotations

import pytest

from serving.agent import events, instructions, machine, slots
from serving.agent.slots import Phase
from serving.domain.wire import ServerState
from tests.unit.agent.world import World, ref, version


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def serving(world: World) -> World:
    """One version, ready."""
    world.assign(version(1))
    world.make_ready(version(1))
    world.asked.clear()
    return world


def test_a_new_version_is_pulled_started_replayed_and_only_then_ready(world: World) -> None:
    world.assign(version(1))
    assert world.state() is ServerState.PULLING
    world.pulled(world.last(instructions.Pull))
    assert world.state() is ServerState.STARTING
    start = world.last(instructions.Start)
    world.started(start)
    world.observed(start, ready=1)
    assert world.state() is ServerState.STARTING, "one of two workers is not all of them"
    world.observed(start, ready=2)
    assert world.state() is ServerState.WARMING
    assert not world.machine.complete()
    world.tell(events.GoldenPassed(ref=ref(), attempt=start.attempt))
    assert world.state() is ServerState.READY
    assert world.machine.complete()


def test_nothing_is_complete_before_something_was_assigned(world: World) -> None:
    assert not world.machine.complete()
    world.assign()
    assert world.machine.complete()


def test_every_change_of_state_is_reported(world: World) -> None:
    assert any(isinstance(i, instructions.Report) for i in world.assign(version(1)))
    before = world.count(instructions.Report)
    world.make_ready(version(1))
    assert world.count(instructions.Report) == before + 4


def test_the_same_assignment_again_changes_nothing(serving: World) -> None:
    serving.generation -= 1
    asked = serving.assign(version(1))
    assert [type(i) for i in asked] == [instructions.Report]
    assert serving.state() is ServerState.READY


def test_models_and_not_versions_share_the_cores(world: World) -> None:
    world.assign(version(1), version(2), version(1, model="bert"))
    for pull in [i for i in world.asked if isinstance(i, instructions.Pull)]:
        world.pulled(pull)
    assert {i.models for i in world.asked if isinstance(i, instructions.Start)} == {2}


# --- leaving -----------------------------------------------------------------------------------------------------


def test_a_version_that_left_the_assignment_is_stopped_once_nothing_is_routed_to_it(serving: World) -> None:
    serving.assign()
    assert serving.state() is ServerState.DRAINING
    serving.acknowledge(ref(1))
    assert serving.count(instructions.Stop) == 0
    serving.acknowledge()
    assert serving.last(instructions.Stop).graceful
    serving.stopped()
    assert serving.machine.slots == ()
    assert serving.count(instructions.Discard) == 1


def test_an_answer_to_a_report_from_before_the_draining_permits_no_stop(serving: World) -> None:
    before = serving.now
    serving.now += 1
    serving.assign()
    serving.acknowledge(reported_at=before)
    assert serving.count(instructions.Stop) == 0


def test_a_version_that_stays_routed_is_stopped_after_the_drain_timeout(serving: World) -> None:
    serving.assign()
    for _ in range(30):
        serving.wait(1)
        serving.acknowledge(ref(1))
    assert serving.count(instructions.Stop) == 0
    for _ in range(31):
        serving.wait(1)
        serving.acknowledge(ref(1))
    assert serving.count(instructions.Stop) == 1


def test_nothing_is_stopped_while_the_control_plane_is_away(serving: World) -> None:
    serving.assign()
    serving.wait(600)
    assert serving.count(instructions.Stop) == 0
    serving.acknowledge()
    assert serving.count(instructions.Stop) == 1


def test_a_version_that_is_assigned_again_while_it_drains_goes_on_serving(serving: World) -> None:
    serving.assign()
    serving.assign(version(1))
    assert serving.state() is ServerState.READY
    serving.acknowledge()
    assert serving.count(instructions.Stop) == 0


def test_a_version_that_is_assigned_again_while_it_stops_is_started_anew(serving: World) -> None:
    serving.assign()
    serving.acknowledge()
    serving.assign(version(1))
    serving.stopped()
    assert serving.state() is ServerState.PULLING
    serving.make_ready(version(1))
    assert serving.machine.complete()


def test_a_version_that_leaves_while_it_is_pulled_is_forgotten_at_once(world: World) -> None:
    world.assign(version(1))
    pull = world.last(instructions.Pull)
    world.assign()
    assert world.machine.slots == ()
    world.pulled(pull)
    assert world.count(instructions.Start) == 0, "the answer belongs to an attempt that is over"


def test_a_version_that_leaves_while_it_loads_is_stopped_at_once(world: World) -> None:
    world.assign(version(1))
    world.pulled(world.last(instructions.Pull))
    world.assign()
    world.started(world.last(instructions.Start))
    assert world.count(instructions.Stop) == 1


def test_another_digest_under_the_same_number_replaces_the_process(serving: World) -> None:
    serving.assign(version(1, digest="f" * 64))
    assert serving.state() is ServerState.DRAINING
    serving.acknowledge()
    serving.stopped()
    assert serving.last(instructions.Pull).version.manifest.digest == "f" * 64


# --- failing -----------------------------------------------------------------------------------------------------


def test_a_version_that_cannot_load_says_why_and_is_tried_again_later(world: World) -> None:
    world.assign(version(1))
    world.pulled(world.last(instructions.Pull))
    start = world.last(instructions.Start)
    world.started(start)
    world.tell(events.LoadFailed(ref=ref(), attempt=start.attempt, error="ValueError: no"))
    assert world.count(instructions.Stop) == 1
    world.stopped()
    assert (world.state(), world.slot().error) == (ServerState.FAILED, "ValueError: no")
    assert world.wait(9) == []
    world.wait(5)
    assert world.count(instructions.Start) == 2
    assert world.slot().error == "ValueError: no", "the reason stays until it is ready"


def test_pauses_between_loads_grow_and_have_a_bound(world: World) -> None:
    world.assign(version(1))
    world.pulled(world.last(instructions.Pull))
    pauses: list[float] = []
    for _ in range(8):
        start = world.last(instructions.Start)
        world.started(start)
        world.tell(events.LoadFailed(ref=ref(), attempt=start.attempt, error="no"))
        world.stopped()
        retry_at = world.slot().retry_at
        assert retry_at is not None
        pauses.append(retry_at - world.now)
        world.wait(pauses[-1] + 0.5)
    assert pauses[0] < pauses[2] < pauses[4]
    assert max(pauses) <= slots.LOAD.cap_s * 1.25


def test_a_failed_version_is_tried_at_once_when_the_assignment_changes(world: World) -> None:
    world.assign(version(1))
    pull = world.last(instructions.Pull)
    world.tell(events.PullFailed(ref=ref(), attempt=pull.attempt, error="digest mismatch", transient=False))
    assert world.state() is ServerState.FAILED
    world.assign(version(1), version(2))
    assert world.state() is ServerState.PULLING


def test_a_store_that_is_away_is_no_failure_of_the_version(world: World) -> None:
    world.assign(version(1))
    pull = world.last(instructions.Pull)
    world.tell(events.PullFailed(ref=ref(), attempt=pull.attempt, error="no route", transient=True))
    assert (world.state(), world.slot().error) == (ServerState.PULLING, "no route")
    world.wait(2)
    assert world.count(instructions.Pull) == 2


def test_a_failure_leaves_the_other_version_alone(serving: World) -> None:
    serving.assign(version(1), version(2))
    serving.pulled(serving.last(instructions.Pull))
    start = serving.last(instructions.Start)
    serving.tell(events.StartFailed(ref=ref(2), attempt=start.attempt, error="disk full"))
    assert serving.state(2) is ServerState.FAILED
    assert serving.state(1) is ServerState.READY


def test_a_copy_that_could_not_be_started_is_looked_at_again(world: World) -> None:
    world.assign(version(1))
    world.pulled(world.last(instructions.Pull))
    start = world.last(instructions.Start)
    world.tell(events.StartFailed(ref=ref(), attempt=start.attempt, error="model/ is gone"))
    world.wait(13)
    assert world.count(instructions.Pull) == 2


def test_wrong_golden_answers_stop_the_process(world: World) -> None:
    world.assign(version(1))
    world.pulled(world.last(instructions.Pull))
    start = world.last(instructions.Start)
    world.started(start)
    world.observed(start, ready=2)
    world.tell(events.GoldenFailed(ref=ref(), attempt=start.attempt, error="0.9 is not 0.1"))
    world.stopped()
    assert (world.state(), world.slot().error) == (ServerState.FAILED, "0.9 is not 0.1")


def test_a_process_that_dies_is_not_ready_and_comes_back_soon(serving: World) -> None:
    serving.exited()
    assert serving.state() is ServerState.FAILED
    assert not serving.last(instructions.Stop).graceful, "what outlived it is killed"
    serving.stopped()
    serving.wait(1)
    serving.load(version(1))
    assert serving.state() is ServerState.READY
    assert serving.slot().restarts == 1
    assert serving.slot().error is None
    assert serving.count(instructions.Pull) == 0, "the verified copy is still there"


def test_a_process_that_keeps_dying_is_started_ever_more_slowly(serving: World) -> None:
    pauses: list[float] = []
    for _ in range(10):
        serving.exited()
        serving.stopped()
        retry_at = serving.slot().retry_at
        assert retry_at is not None
        pauses.append(retry_at - serving.now)
        serving.wait(pauses[-1] + 0.5)
        serving.load(version(1))
    assert pauses[0] < 1 < pauses[4] < pauses[6]
    assert max(pauses) <= slots.CRASH.cap_s * 1.25


def test_earlier_crashes_are_forgotten_after_a_calm_while(serving: World) -> None:
    serving.exited()
    serving.stopped()
    serving.wait(1)
    serving.load(version(1))
    assert serving.slot().failures == 1
    serving.wait(machine.STABLE_S)
    assert serving.slot().failures == 0


def test_a_process_without_a_worker_is_not_ready_until_it_answers_again(serving: World) -> None:
    slot = serving.slot()
    start = instructions.Watch(version=slot.version, attempt=slot.attempt)
    serving.observed(start, ready=0, deaths=2, words="Segmentation fault")
    assert serving.state() is ServerState.STARTING
    assert "Segmentation fault" in (slot.error or "")
    serving.observed(start, ready=1, deaths=2)
    assert serving.state() is ServerState.WARMING, "it has to prove itself again"
    serving.tell(events.GoldenPassed(ref=ref(), attempt=slot.attempt))
    assert serving.state() is ServerState.READY
    assert serving.count(instructions.Stop) == 0


def test_a_process_whose_workers_do_not_come_back_is_restarted_as_a_whole(serving: World) -> None:
    slot = serving.slot()
    serving.observed(instructions.Watch(version=slot.version, attempt=slot.attempt), ready=0, deaths=2)
    serving.wait(machine.RECOVERY_S + 1)
    assert slot.phase is Phase.STOPPING
    assert serving.count(instructions.Stop) == 1


def test_a_loss_of_one_worker_of_two_stays_ready(serving: World) -> None:
    slot = serving.slot()
    serving.observed(instructions.Watch(version=slot.version, attempt=slot.attempt), ready=1, deaths=1)
    assert serving.state() is ServerState.READY


def test_a_crash_loop_of_workers_restarts_the_process(serving: World) -> None:
    slot = serving.slot()
    watch = instructions.Watch(version=slot.version, attempt=slot.attempt)
    for deaths in range(1, machine.CRASH_LOOP_DEATHS + 1):
        serving.now += 2
        serving.observed(watch, ready=1, deaths=deaths, words="MemoryError")
    assert slot.phase is Phase.STOPPING
    assert "MemoryError" in (slot.error or "")


def test_workers_that_die_now_and_then_are_no_crash_loop(serving: World) -> None:
    slot = serving.slot()
    watch = instructions.Watch(version=slot.version, attempt=slot.attempt)
    for deaths in range(1, 20):
        serving.now += machine.CRASH_LOOP_S / 2
        serving.observed(watch, ready=1, deaths=deaths)
    assert serving.state() is ServerState.READY


def test_loading_has_a_deadline(world: World) -> None:
    world.assign(version(1))
    world.pulled(world.last(instructions.Pull))
    world.started(world.last(instructions.Start))
    world.wait(300 + machine.STARTUP_MARGIN_S + 1)
    assert world.count(instructions.Stop) == 1
    world.stopped()
    assert "no worker was ready after" in (world.slot().error or "")


# --- agents that come and go -------------------------------------------------------------------------------------


def test_an_adopted_process_that_answers_is_ready_without_being_touched(world: World) -> None:
    asked = world.tell(events.Adopted(version=version(1), facts=world.facts(), answers=True))
    assert [type(i) for i in asked] == [instructions.Watch, instructions.Report]
    world.wait(100)
    assert world.state() is ServerState.READY, "nothing was assigned yet, so nothing is unwanted"
    world.assign(version(1))
    assert world.machine.complete()
    assert world.count(instructions.Pull) + world.count(instructions.Stop) == 0


def test_an_adopted_process_that_nobody_wants_is_drained(world: World) -> None:
    world.tell(events.Adopted(version=version(1), facts=world.facts(), answers=True))
    world.assign(version(2))
    assert world.state(1) is ServerState.DRAINING


def test_an_adopted_process_that_does_not_answer_has_to_prove_itself(world: World) -> None:
    world.tell(events.Adopted(version=version(1), facts=world.facts(), answers=False))
    assert world.state() is ServerState.STARTING
    slot = world.slot()
    world.observed(instructions.Watch(version=slot.version, attempt=slot.attempt), ready=2)
    assert world.state() is ServerState.WARMING


# --- the end -----------------------------------------------------------------------------------------------------


def test_a_replica_that_ends_drains_first_and_exits_last(serving: World) -> None:
    serving.tell(events.ShutdownRequested())
    assert serving.machine.shutting_down
    assert serving.state() is ServerState.DRAINING
    assert not serving.machine.complete()
    serving.acknowledge(ref(1))
    assert serving.count(instructions.Stop) == 0
    serving.acknowledge()
    assert serving.count(instructions.Exit) == 0
    serving.stopped()
    assert serving.count(instructions.Exit) == 1


def test_a_replica_that_ends_does_not_wait_for_a_control_plane_that_is_away(serving: World) -> None:
    serving.tell(events.ShutdownRequested())
    serving.wait(machine.SILENT_DRAIN_S - 1)
    assert serving.count(instructions.Stop) == 0
    serving.wait(2)
    assert serving.count(instructions.Stop) == 1


def test_a_second_request_to_end_stops_at_once(serving: World) -> None:
    serving.tell(events.ShutdownRequested())
    serving.tell(events.ShutdownRequested(at_once=True))
    assert serving.count(instructions.Stop) == 1


def test_a_replica_that_ends_takes_nothing_new(serving: World) -> None:
    serving.tell(events.ShutdownRequested())
    serving.assign(version(1), version(2))
    assert serving.count(instructions.Pull) == 0
    assert serving.state(1) is ServerState.DRAINING


def test_a_replica_with_nothing_to_stop_exits_at_once(world: World) -> None:
    assert any(isinstance(i, instructions.Exit) for i in world.tell(events.ShutdownRequested()))


def test_the_story_tells_what_happened_to_one_version(serving: World) -> None:
    serving.exited()
    story = serving.machine.story(ref(1))
    assert "killed by SIGKILL" in story
    assert story.index("assigned") < story.index("verified and unpacked") < story.index("SIGKILL")
