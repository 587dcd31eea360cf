from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from serving.domain import wire
from serving.gateway import clusters, names, problems, routes, xds
from tests.support import gateway as g

OPTIONS = xds.Options()


def endpoint(replica: str = "a", host: str = "127.0.0.1") -> wire.Endpoint:
    return wire.Endpoint(replica=replica, host=host, rest_port=8080, grpc_port=7070)


def routes_in(matched: dict[str, Any]) -> list[dict[str, Any]]:
    """All routes behind a match, in no order that means anything."""
    if "action" in matched:
        return matched["action"]["typed_config"]["routes"]
    matcher = matched["matcher"]
    kinds = matcher.get("matcher_tree", {})
    branches = [branch for kind in kinds.values() for branch in kind.get("map", {}).values()]
    return [route for branch in [*branches, matcher["on_no_match"]] for route in routes_in(branch)]


def routes_of(snapshot: xds.Snapshot) -> list[dict[str, Any]]:
    return routes_in({"matcher": snapshot.routes["virtual_hosts"][0]["matcher"]})


def named_clusters(snapshot: xds.Snapshot) -> set[str]:
    return {route["route"]["cluster"] for route in routes_of(snapshot) if "route" in route}


def test_every_version_has_a_cluster_for_rest_and_one_for_grpc() -> None:
    snapshot = xds.snapshot(g.config(g.model("a.b", [g.version(3, [endpoint()])], production=3)), OPTIONS)
    assert set(snapshot.clusters) == {"a.b@3@rest", "a.b@3@grpc"}
    ports = {
        name: cluster["load_assignment"]["endpoints"][0]["lb_endpoints"][0]["endpoint"]["address"]["socket_address"]
        for name, cluster in snapshot.clusters.items()
    }
    assert (ports["a.b@3@rest"]["port_value"], ports["a.b@3@grpc"]["port_value"]) == (8080, 7070)


def test_no_route_leads_to_a_cluster_that_does_not_exist() -> None:
    models = [
        g.model("a", [g.version(1, [endpoint()]), g.version(2)], production={1: 9_000, 2: 1_000}, staging=2),
        g.model("b", [g.version(1)], production=7),  # a weight on a version that nobody holds
        g.model("c", []),
    ]
    snapshot = xds.snapshot(g.config(*models), OPTIONS)
    assert named_clusters(snapshot) <= set(snapshot.clusters) | {names.OIP_ADAPTER}


def test_the_same_configuration_gives_the_same_resources() -> None:
    config = g.config(g.model("a", [g.version(1, [endpoint()])], production=1))
    assert xds.snapshot(config, OPTIONS) == xds.snapshot(config, OPTIONS)


def test_fractions_grow_to_the_whole_and_weights_of_zero_vanish() -> None:
    stage = wire.GatewayStage(
        stage="production",
        weights=[wire.WeightedVersion(version=v, weight=w) for v, w in [(1, 7_000), (2, 0), (3, 2_000), (4, 1_000)]],
    )
    assert routes.shares(stage) == [(1, 7_000), (3, 9_000), (4, 10_000)]


def test_weights_that_do_not_sum_up_still_cover_all_requests() -> None:
    stage = wire.GatewayStage(
        stage="production", weights=[wire.WeightedVersion(version=v, weight=1) for v in (1, 2, 3)]
    )
    assert routes.shares(stage)[-1] == (3, 10_000)


def test_each_version_brings_its_own_timeout_and_limit() -> None:
    versions = [g.version(1, [endpoint()], timeout_s=5), g.version(2, [endpoint()], max_request_bytes=2048)]
    snapshot = xds.snapshot(g.config(g.model("a", versions, production={1: 5_000, 2: 5_000})), OPTIONS)
    by_cluster = {route["route"]["cluster"]: route for route in routes_of(snapshot) if "route" in route}
    assert by_cluster["a@1@rest"]["route"]["idle_timeout"] == "5s"
    assert by_cluster["a@2@rest"]["metadata"]["filter_metadata"]["envoy.filters.http.lua"]["limit_bytes"] == 2048


@pytest.mark.parametrize(("cap", "expected"), [(None, 5000), (4000, 4000), (6000, 5000)])
def test_the_gateway_s_own_limit_caps_a_version_s(cap: int | None, expected: int) -> None:
    assert clusters.limit_bytes(g.version(1, max_request_bytes=5000), cap) == expected


def test_a_request_is_retried_only_while_no_handler_can_have_seen_it() -> None:
    snapshot = xds.snapshot(g.config(g.model("a", [g.version(1, [endpoint()])], production=1)), OPTIONS)
    policy = snapshot.routes["virtual_hosts"][0]["retry_policy"]
    assert set(policy["retry_on"].split(",")) == {"connect-failure", "refused-stream", "reset-before-request"}
    assert not any("retry_policy" in route.get("route", {}) for route in routes_of(snapshot))


def test_only_connections_that_fail_put_an_endpoint_aside_and_never_the_last() -> None:
    detection = clusters.cluster("a", g.version(1, [endpoint()]), "rest", cap=None)["outlier_detection"]
    assert detection["split_external_local_origin_errors"] is True
    enforced = {name for name, value in detection.items() if name.startswith("enforcing_") and value > 0}
    assert enforced == {"enforcing_consecutive_local_origin_failure"}
    assert detection["max_ejection_percent"] < 100


def test_replicas_that_report_a_name_are_looked_up() -> None:
    by_address = clusters.cluster("a", g.version(1, [endpoint(host="10.0.0.1")]), "rest", cap=None)
    by_name = clusters.cluster("a", g.version(1, [endpoint(host="replica-0.pool")]), "rest", cap=None)
    assert (by_address["type"], by_name["type"]) == ("STATIC", "STRICT_DNS")


def test_internal_headers_are_removed_for_every_route() -> None:
    removed = set(xds.snapshot(g.config(), OPTIONS).routes["request_headers_to_remove"])
    assert {"describe", "explain", "slipway-protocol", "x-slipway-model", "x-slipway-version"} <= removed


def test_nothing_falls_through_the_last_route() -> None:
    for snapshot in (xds.unconfigured(), xds.snapshot(g.config(), OPTIONS)):
        assert routes_of(snapshot)[-1]["match"] == {"prefix": "/"}


def test_cluster_names_can_be_taken_apart_again() -> None:
    assert names.parse_cluster(names.cluster("a.b-c_d", 12, "grpc")) == ("a.b-c_d", 12, "grpc")
    assert names.parse_cluster(names.OIP_ADAPTER) is None
    assert names.parse_cluster("a@x@rest") is None


def test_error_bodies_begin_with_type_and_status_in_compact_json() -> None:
    body = problems.encode(problems.too_large("digits", 3, 1024))
    assert body.startswith('{"type":"urn:slipway:error:request-too-large","status":413,"title":')
    assert json.loads(body)["limit_bytes"] == 1024


def test_the_text_of_every_lua_filter_is_packaged() -> None:
    folder = Path(xds.__file__).parent / "lua"
    assert {path.stem for path in folder.glob("*.lua")} == {"grpc", "upstream_errors", "unknown_model"}
