from __future__ import annotations

from datetime import UTC, datetime

from serving.domain import wire
from serving.local import answering

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def config(*, weights: dict[str, int], endpoints: dict[int, int]) -> wire.GatewayConfig:
    """One model: stage → version, and version → REST port."""
    return wire.GatewayConfig(
        revision="r",
        models=[
            wire.GatewayModel(
                model="digits",
                stages=[
                    wire.GatewayStage(stage=stage, weights=[wire.WeightedVersion(version=version, weight=10_000)])
                    for stage, version in weights.items()
                ],
                versions=[
                    wire.GatewayVersion(
                        version=version,
                        endpoints=[wire.Endpoint(replica="local", host="127.0.0.1", rest_port=port, grpc_port=1)],
                        response_timeout_s=1,
                        max_request_bytes=1,
                        metadata={},
                    )
                    for version, port in endpoints.items()
                ],
            )
        ],
    )


def report(*servers: tuple[int, wire.ServerState, int]) -> wire.ReplicaReport:
    return wire.ReplicaReport(
        replica="local",
        pool="cpu",
        agent_url="",
        started_at=NOW,
        generation=1,
        servers=[
            wire.ServerReport(
                model="digits", version=version, digest="0" * 64, state=state, since=NOW, rest_port=port, error="broken"
            )
            for version, state, port in servers
        ],
    )


READY, STARTING, FAILED = wire.ServerState.READY, wire.ServerState.STARTING, wire.ServerState.FAILED


def test_a_version_that_a_stage_serves_is_waited_for() -> None:
    promoted = config(weights={"production": 2}, endpoints={})
    missing = answering.unready(promoted, report((2, STARTING, 5)))
    assert missing is not None
    assert not missing.final
    assert "digits@2 is starting" in missing.what
    assert answering.unready(promoted, report()) is not None
    assert answering.unready(promoted, report((2, READY, 5))) is None


def test_a_version_that_only_waits_to_be_rolled_back_to_is_not_waited_for() -> None:
    promoted = config(weights={"production": 2}, endpoints={})
    assert answering.unready(promoted, report((1, STARTING, 4), (2, READY, 5))) is None


def test_waiting_ends_when_nothing_but_a_failure_is_left() -> None:
    promoted = config(weights={"production": 2, "staging": 3}, endpoints={})
    loading = answering.unready(promoted, report((2, FAILED, 5), (3, STARTING, 6)))
    assert loading is not None
    assert not loading.final
    failed = answering.unready(promoted, report((2, FAILED, 5), (3, READY, 6)))
    assert failed is not None
    assert failed.final
    assert "broken" in failed.what


def test_an_address_of_the_run_before_is_not_taken_for_the_present_one() -> None:
    before = config(weights={"production": 2}, endpoints={2: 5})
    assert answering.unrouted(before, report((2, READY, 6))) == wire.VersionRef(model="digits", version=2)
    assert answering.unrouted(before, report((2, READY, 5))) is None


def test_models_in_production_are_those_that_are_asked() -> None:
    assert answering.in_production(config(weights={"staging": 1}, endpoints={})) == []
    assert answering.in_production(config(weights={"production": 1}, endpoints={})) == ["digits"]
