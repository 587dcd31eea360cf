"""Clusters: for each model version one that speaks REST to its server processes, and one that speaks gRPC."""

from __future__ import annotations

import ipaddress
from typing import Any

from serving.domain import wire
from serving.gateway import names

CONNECT_TIMEOUT_S = 2
IDLE_TIMEOUT_S = 300
BUFFER_BYTES = 1024 * 1024

# TorchServe refuses by its own queue long before this; Envoy's defaults (1024) would refuse first, in other words.
MAX_CONNECTIONS = 8192
MAX_REQUESTS = 8192
MAX_RETRIES = 256

MAX_STREAMS = 1024
"""Of one HTTP/2 connection to a server process."""

Resource = dict[str, Any]


def limit_bytes(version: wire.GatewayVersion, cap: int | None) -> int:
    """The largest request that a version gets, in bytes."""
    return version.max_request_bytes if cap is None else min(version.max_request_bytes, cap)


def cluster(model: str, version: wire.GatewayVersion, protocol: names.Protocol, *, cap: int | None) -> Resource:
    """Envoy's ``Cluster``, endpoints included; it has none while no replica is ready.

    Endpoints by EDS would leave connections alone when a replica comes or goes, but from files Envoy takes an inotify
    instance for every cluster, and a machine has 128 of them. Requests in flight outlive the change either way.
    """
    name = names.cluster(model, version.version, protocol)
    hosts = [
        (endpoint.host, endpoint.rest_port if protocol == "rest" else endpoint.grpc_port)
        for endpoint in version.endpoints
    ]
    return {
        "@type": "type.googleapis.com/envoy.config.cluster.v3.Cluster",
        "name": name,
        # Replicas report an address, as a rule; one that reports a name is looked up.
        "type": "STATIC" if all(_is_address(host) for host, _ in hosts) else "STRICT_DNS",
        "dns_lookup_family": "V4_PREFERRED",
        "load_assignment": _assignment(name, hosts),
        "connect_timeout": f"{CONNECT_TIMEOUT_S}s",
        "per_connection_buffer_limit_bytes": BUFFER_BYTES,
        "lb_policy": "LEAST_REQUEST",
        "common_lb_config": {"healthy_panic_threshold": {"value": 50}},
        "circuit_breakers": {
            "thresholds": [
                {
                    "priority": "DEFAULT",
                    "max_connections": MAX_CONNECTIONS,
                    "max_pending_requests": MAX_REQUESTS,
                    "max_requests": MAX_REQUESTS,
                    "max_retries": MAX_RETRIES,
                }
            ]
        },
        "outlier_detection": _outlier_detection(),
        "upstream_connection_options": {
            "tcp_keepalive": {"keepalive_time": 30, "keepalive_interval": 10, "keepalive_probes": 3}
        },
        "typed_extension_protocol_options": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": _protocol(protocol)
        },
        # What error bodies say about the version.
        "metadata": {
            "filter_metadata": {
                names.METADATA: {
                    "what": f"{model} version {version.version}",
                    "model": model,
                    "version": version.version,
                    "timeout_s": version.response_timeout_s,
                    "limit_bytes": limit_bytes(version, cap),
                }
            }
        },
    }


def has_endpoints(resource: Resource) -> bool:
    """Whether a cluster can answer anything."""
    return any(locality["lb_endpoints"] for locality in resource["load_assignment"]["endpoints"])


def oip_adapter(port: int) -> Resource:
    """The companion's gRPC server: static, so that it stands in the bootstrap."""
    return {
        "name": names.OIP_ADAPTER,
        "type": "STATIC",
        "connect_timeout": f"{CONNECT_TIMEOUT_S}s",
        "load_assignment": _assignment(names.OIP_ADAPTER, [("127.0.0.1", port)]),
        "circuit_breakers": {
            "thresholds": [
                {"max_connections": MAX_CONNECTIONS, "max_pending_requests": MAX_REQUESTS, "max_requests": MAX_REQUESTS}
            ]
        },
        "typed_extension_protocol_options": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": _protocol("grpc")
        },
        "metadata": {"filter_metadata": {names.METADATA: {"what": "the Open Inference Protocol's gRPC adapter"}}},
    }


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _assignment(name: str, hosts: list[tuple[str, int]]) -> Resource:
    listed = [
        {"endpoint": {"address": {"socket_address": {"address": host, "port_value": port}}}} for host, port in hosts
    ]
    return {"cluster_name": name, "endpoints": [{"lb_endpoints": listed}]}


def _protocol(protocol: names.Protocol) -> Resource:
    # No HTTP/2 pings: grpc-java answers more than one in five minutes with GOAWAY "too_many_pings".
    explicit = (
        {"http_protocol_options": {}}
        if protocol == "rest"
        else {"http2_protocol_options": {"max_concurrent_streams": MAX_STREAMS}}
    )
    return {
        "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
        "common_http_protocol_options": {"idle_timeout": f"{IDLE_TIMEOUT_S}s"},
        "explicit_http_config": explicit,
    }


def _outlier_detection() -> Resource:
    """Leave out, for seconds, an endpoint that does not take connections. What a model answers never counts.

    At most half of the endpoints are left out: one alone never is, since a wrong guess would then be an outage.
    """
    return {
        "split_external_local_origin_errors": True,
        "consecutive_local_origin_failure": 3,
        "enforcing_consecutive_local_origin_failure": 100,
        "enforcing_local_origin_success_rate": 0,
        "enforcing_consecutive_5xx": 0,
        "enforcing_consecutive_gateway_failure": 0,
        "enforcing_success_rate": 0,
        "enforcing_failure_percentage": 0,
        "interval": "1s",
        "base_ejection_time": "2s",
        "max_ejection_time": "10s",
        "max_ejection_percent": 50,
    }
