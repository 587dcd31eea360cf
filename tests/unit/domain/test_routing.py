from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as some

from serving.domain import rollouts, routing, stages, wire
from serving.domain.wire import ServerState, VersionRef
from tests.support import worlds


def serving(version: int = 1) -> worlds.World:
    world = worlds.World()
    world.promote(version)
    return world


def endpoints(world: worlds.World, version: int) -> list[str]:
    (model,) = world.config.models
    return [endpoint.replica for entry in model.versions if entry.version == version for endpoint in entry.endpoints]


def test_model_without_a_promotion_is_known_but_has_no_weights() -> None:
    (model,) = worlds.World().config.models
    assert [(stage.stage, stage.weights) for stage in model.stages] == [("production", []), ("staging", [])]
    assert model.versions == []


def test_all_weight_is_on_the_stable_version_until_the_rollout_shifts() -> None:
    world = serving(1)
    world.start(2)
    world.settle()
    assert routing.weights_of(world.config, "digits", "production") == {1: 10_000}
    world.report(worlds.server(1), worlds.server(2))
    world.settle()
    assert routing.weights_of(world.config, "digits", "production") == {2: 10_000}


def test_only_replicas_that_report_the_version_ready_are_endpoints() -> None:
    world = serving(1)
    world.report(worlds.server(1, ServerState.WARMING), replica="r2")
    world.report(worlds.server(1, digest=worlds.digest(9)), replica="r3")
    world.report(worlds.server(1), replica="r0")
    assert endpoints(world, 1) == ["r0", "r1"]


def test_silent_replica_is_dropped_unless_it_is_the_last_one() -> None:
    world = serving(1)
    world.pass_time(31)
    assert endpoints(world, 1) == ["r1"]
    world.report(worlds.server(1), replica="r2")
    assert endpoints(world, 1) == ["r2"]


def test_replica_that_shuts_down_is_never_routed_to() -> None:
    world = serving(1)
    world.report(worlds.server(1), draining=True)
    assert endpoints(world, 1) == []


def test_the_same_facts_give_the_same_revision_whatever_their_order() -> None:
    first, second = serving(1), serving(1)
    for name in ("a", "b"):
        first.report(worlds.server(1), replica=name)
    for name in ("b", "a"):
        second.report(worlds.server(1), replica=name)
    assert first.config.revision == second.config.revision
    second.report(worlds.server(1, rest_port=1), replica="a")
    assert first.config.revision != second.config.revision


def test_versions_are_newest_first_and_tell_their_limits_and_metadata() -> None:
    world = serving(1)
    world.promote(2)
    (model,) = world.config.models
    assert [version.version for version in model.versions] == [2, 1]
    newest = model.versions[0]
    assert (newest.response_timeout_s, newest.max_request_bytes) == (60, 64 * 1024 * 1024)
    assert newest.metadata == {
        "name": "digits",
        "versions": ["1", "2"],
        "platform": "slipway_torchserve",
        "inputs": [{"name": "image", "datatype": "UINT8", "shape": [-1, 28, 28]}],
        "outputs": [{"name": "scores", "datatype": "FP32", "shape": [-1, 10]}],
    }


def test_version_is_routed_until_every_gateway_has_let_it_go_and_its_requests_have_ended() -> None:
    world = serving(1)
    world.apply_config("slow")
    world.limits = type(world.limits)(rollback_window_s=0)
    world.start(2)
    world.settle()
    world.report(worlds.server(1), worlds.server(2))
    world.settle()

    def routed() -> list[int]:
        refs = routing.routed(world.replicas["r1"].report, current=world.config, gateways=world.facts.live_gateways())
        return [ref.version for ref in refs]

    world.apply_config("g1")
    assert routed() == [1, 2], "slow still sends version 1"
    world.apply_config("slow")
    assert world.settle().state is rollouts.State.DONE
    world.apply_config("g1")
    world.apply_config("slow", active={1: 1})
    assert routed() == [1, 2], "a request is still there"
    world.apply_config("slow")
    assert routed() == [2]


def test_gateway_with_an_unknown_configuration_may_send_anything() -> None:
    world = serving(1)
    world.report(worlds.server(1), worlds.server(3))
    unknown = worlds.gateway_report("0" * 64, gateway="new")
    world.gateways["new"] = type(world.gateways["g1"])(report=unknown, last_seen=world.now)
    refs = routing.routed(world.replicas["r1"].report, current=world.config, gateways=world.facts.live_gateways())
    assert [ref.version for ref in refs] == [1, 3]


def test_nothing_is_known_before_the_first_configuration_so_everything_held_counts_as_routed() -> None:
    report = worlds.report(worlds.server(1), worlds.server(2))
    assert routing.routed(report, current=None, gateways=[]) == [
        VersionRef(model="digits", version=1),
        VersionRef(model="digits", version=2),
    ]


@given(
    some.lists(some.tuples(some.sampled_from(["r1", "r2", "r3"]), some.booleans(), some.integers(0, 40)), max_size=12)
)
def test_a_version_that_was_ready_somewhere_never_loses_its_last_endpoint_to_silence(story) -> None:
    world = serving(1)
    for replica, has_it, seconds in story:
        world.report(*([worlds.server(1)] if has_it or replica == "r1" else []), replica=replica)
        world.pass_time(seconds)
        assert endpoints(world, 1)
        assert sum(routing.weights_of(world.config, "digits", stages.Name.PRODUCTION).values()) == 10_000
        assert world.config == wire.GatewayConfig.model_validate_json(world.config.model_dump_json())
