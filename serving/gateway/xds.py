"""A configuration as Envoy's resources: pure, one way, the whole of it.

The listener is not among them: it never changes while Envoy runs, and as part of the bootstrap a taken port ends
Envoy at once instead of leaving a gateway that listens nowhere.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from serving.domain import wire
from serving.gateway import clusters, names, tables

Resource = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the mapping needs to know about the gateway itself."""

    max_request_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """Everything that Envoy is told, for one revision."""

    revision: str
    clusters: dict[str, Resource] = field(default_factory=dict[str, Resource])
    routes: Resource


def snapshot(config: wire.GatewayConfig, options: Options) -> Snapshot:
    """The resources that serve a configuration."""
    made = [
        clusters.cluster(model.model, version, protocol, cap=options.max_request_bytes)
        for model in config.models
        for version in model.versions
        for protocol in names.PROTOCOLS
    ]
    return Snapshot(
        revision=config.revision,
        clusters={resource["name"]: resource for resource in made},
        routes=tables.configuration(tables.of(config, cap=options.max_request_bytes)),
    )


def unconfigured() -> Snapshot:
    """What a gateway serves that has never had a configuration: its own liveness, and 503 for the rest."""
    return Snapshot(revision="", routes=tables.configuration(tables.unconfigured()))
