"""The one listener: REST, gRPC and the Open Inference Protocol on one port, HTTP/1.1 and h2c alike."""

from __future__ import annotations

import importlib.resources
from pathlib import Path
from typing import Any

from serving.gateway import names, replies, tables

Resource = dict[str, Any]

BUFFER_BYTES = 1024 * 1024
HEADERS_KB = 60
HEADERS_TIMEOUT_S = 15
STREAM_IDLE_S = 300
"""For answers that are not a version's; a version's route brings its own."""

CONNECTION_IDLE_S = 3600
MAX_STREAMS = 1024
STREAM_WINDOW_BYTES = 1024 * 1024
CONNECTION_WINDOW_BYTES = 16 * 1024 * 1024

LUA = "type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua"


def listener(*, host: str, port: int, rds: Path, access_log: str | None) -> Resource:
    """Envoy's ``Listener``.

    Args:
        rds: the file with the routes.
        access_log: a path, ``-`` for standard output, or ``None``.
    """
    return {
        "name": names.INGRESS,
        "address": {"socket_address": {"address": host, "port_value": port}},
        # With SO_REUSEPORT a second Envoy would take the same port in silence, and half of the traffic with it.
        "enable_reuse_port": False,
        "connection_balance_config": {"exact_balance": {}},
        "per_connection_buffer_limit_bytes": BUFFER_BYTES,
        "filter_chains": [
            {
                "filters": [
                    {
                        "name": "envoy.filters.network.http_connection_manager",
                        "typed_config": _manager(rds=rds, access_log=access_log),
                    }
                ]
            }
        ],
    }


def script(name: str) -> str:
    """The text of ``lua/{name}.lua``."""
    return (importlib.resources.files("serving.gateway") / "lua" / f"{name}.lua").read_text(encoding="utf-8")


def _manager(*, rds: Path, access_log: str | None) -> Resource:
    return {
        "@type": "type.googleapis.com/"
        "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": names.INGRESS,
        "codec_type": "AUTO",
        "server_name": names.SERVER,
        "use_remote_address": True,
        "normalize_path": True,
        "merge_slashes": True,
        "path_with_escaped_slashes_action": "REJECT_REQUEST",
        "always_set_request_id_in_response": True,
        "max_request_headers_kb": HEADERS_KB,
        "request_headers_timeout": f"{HEADERS_TIMEOUT_S}s",
        "stream_idle_timeout": f"{STREAM_IDLE_S}s",
        "common_http_protocol_options": {"idle_timeout": f"{CONNECTION_IDLE_S}s"},
        "http2_protocol_options": {
            "max_concurrent_streams": MAX_STREAMS,
            "initial_stream_window_size": STREAM_WINDOW_BYTES,
            "initial_connection_window_size": CONNECTION_WINDOW_BYTES,
        },
        "local_reply_config": replies.config(),
        "access_log": _access_log(access_log),
        "rds": {
            "route_config_name": names.ROUTES,
            "config_source": {"resource_api_version": "V3", "path_config_source": {"path": str(rds)}},
        },
        "http_filters": [
            _off(
                names.BUFFER_FILTER,
                {
                    "@type": "type.googleapis.com/envoy.extensions.filters.http.buffer.v3.Buffer",
                    "max_request_bytes": tables.DEFAULT_LIMIT_BYTES,
                },
            ),
            _off(names.GRPC_FILTER, _lua("grpc")),
            _off(names.ERRORS_FILTER, _lua("upstream_errors")),
            _off(names.UNKNOWN_FILTER, _lua("unknown_model")),
            {
                "name": "envoy.filters.http.router",
                "typed_config": {
                    "@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router",
                    "suppress_envoy_headers": True,
                },
            },
        ],
    }


def _off(name: str, config: Resource) -> Resource:
    """A filter that only routes that ask for it have in their chain."""
    return {"name": name, "typed_config": config, "disabled": True}


def _lua(name: str) -> Resource:
    return {"@type": LUA, "default_source_code": {"inline_string": script(name)}}


def _access_log(target: str | None) -> list[Resource]:
    if target is None:
        return []
    kind, path = ("stdout.v3.StdoutAccessLog", {}) if target == "-" else ("file.v3.FileAccessLog", {"path": target})
    if target == "-":
        kind = "stream.v3.StdoutAccessLog"
    fields = {
        "time": "%START_TIME%",
        "part": "gateway",
        "request_id": "%REQ(X-REQUEST-ID)%",
        "method": "%REQ(:METHOD)%",
        "path": "%REQ(X-ENVOY-ORIGINAL-PATH?:PATH)%",
        "protocol": "%PROTOCOL%",
        "status": "%RESPONSE_CODE%",
        "grpc_status": "%GRPC_STATUS_NUMBER%",
        "flags": "%RESPONSE_FLAGS%",
        "model": "%CLUSTER_METADATA(slipway:model)%",
        "version": "%CLUSTER_METADATA(slipway:version)%",
        "replica": "%UPSTREAM_HOST%",
        "request_bytes": "%BYTES_RECEIVED%",
        "response_bytes": "%BYTES_SENT%",
        "ms": "%DURATION%",
        "upstream_ms": "%REQUEST_TX_DURATION%",
        "client": "%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%",
    }
    return [
        {
            "name": "access_log",
            "typed_config": {
                "@type": f"type.googleapis.com/envoy.extensions.access_loggers.{kind}",
                **path,
                "log_format": {"json_format": fields},
            },
        }
    ]
