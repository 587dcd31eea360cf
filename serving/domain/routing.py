"""From facts to the gateways' configuration, and back: what a configuration in force still routes to."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from model_store.manifest import Manifest
from serving.domain import stages, strategies, wire

if TYPE_CHECKING:
    from serving.domain.facts import Facts, Gateway, Replica, Version

PLATFORM = "slipway_torchserve"


def is_ready(server: wire.ServerReport | None) -> bool:
    """Whether requests may be sent to a server process: it says so, and says where."""
    return (
        server is not None
        and server.state is wire.ServerState.READY
        and server.rest_port is not None
        and server.grpc_port is not None
    )


def config(facts: Facts, *, wanted: set[wire.VersionRef]) -> wire.GatewayConfig:
    """The configuration that every gateway is to serve now.

    Args:
        wanted: versions that the pools hold (``assignments.wanted``): those may be addressed by number.
    """
    numbers: dict[str, list[int]] = {name: [] for name in facts.models}
    for ref in wanted:
        numbers[ref.model].append(ref.version)
    models = [_model(name, sorted(numbers[name], reverse=True), facts) for name in sorted(numbers)]
    return wire.GatewayConfig(revision=revision(models), models=models)


def revision(models: Iterable[wire.GatewayModel]) -> str:
    """SHA-256 over the models as canonical JSON: the same facts give the same revision, in every process."""
    document = [model.model_dump(mode="json") for model in models]
    canonical = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(canonical.encode("utf-8", "surrogatepass")).hexdigest()


def endpoints(version: Version, facts: Facts) -> list[wire.Endpoint]:
    """Where a version answers.

    A replica that is shutting down is never among them. A silent one is dropped, unless that would leave the version
    without any: an old address may still answer, no address cannot.
    """
    candidates = [replica for replica in facts.replicas if not replica.report.draining]
    ready = [
        (replica, endpoint) for replica in candidates if (endpoint := _endpoint(replica, version, facts)) is not None
    ]
    live = [endpoint for replica, endpoint in ready if facts.is_live(replica.last_seen)]
    return sorted(live or [endpoint for _, endpoint in ready], key=lambda endpoint: endpoint.replica)


def metadata(manifest: Manifest, *, versions: Iterable[int]) -> dict[str, Any]:
    """The Open Inference Protocol v2 model metadata answer."""
    return {
        "name": manifest.model,
        "versions": [str(version) for version in versions],
        "platform": PLATFORM,
        "inputs": [tensor.model_dump(mode="json") for tensor in manifest.config.signature.inputs],
        "outputs": [tensor.model_dump(mode="json") for tensor in manifest.config.signature.outputs],
    }


def weights_of(config: wire.GatewayConfig, model: str, stage: str) -> dict[int, int]:
    """Version → weight of a stage in a configuration; weights of zero are left out."""
    for known in config.models:
        if known.model == model:
            for entry in known.stages:
                if entry.stage == stage:
                    return {weighted.version: weighted.weight for weighted in entry.weights if weighted.weight > 0}
    return {}


def weighted(config: wire.GatewayConfig) -> set[wire.VersionRef]:
    """Versions that some stage sends traffic to."""
    return {
        wire.VersionRef(model=model.model, version=entry.version)
        for model in config.models
        for stage in model.stages
        for entry in stage.weights
        if entry.weight > 0
    }


def reachable(config: wire.GatewayConfig, *, replica: str) -> set[wire.VersionRef]:
    """Versions that a gateway with this configuration may send to the replica, by weight or by number."""
    return {
        wire.VersionRef(model=model.model, version=version.version)
        for model in config.models
        for version in model.versions
        if any(endpoint.replica == replica for endpoint in version.endpoints)
    }


def routed(
    report: wire.ReplicaReport, *, current: wire.GatewayConfig | None, gateways: Iterable[Gateway]
) -> list[wire.VersionRef]:
    """Versions that some gateway may still send to the replica, or has requests in flight for.

    Args:
        current: the newest configuration: a gateway may take it up at any moment.
        gateways: live ones. One whose configuration is unknown may send anything.
    """
    held = {server.ref for server in report.servers}
    refs: set[wire.VersionRef] = reachable(current, replica=report.replica) if current is not None else set(held)
    for gateway in gateways:
        if gateway.applied is None:
            refs |= held
        else:
            refs |= reachable(gateway.applied, replica=report.replica)
        refs |= {ref for ref in held if gateway.active(model=ref.model, version=ref.version) > 0}
    return sorted(refs, key=lambda ref: (ref.model, ref.version))


def _model(name: str, numbers: list[int], facts: Facts) -> wire.GatewayModel:
    versions = [_version(facts.version(name, number), numbers, facts) for number in numbers]
    return wire.GatewayModel(
        model=name, stages=[_stage(name, stage, facts) for stage in stages.Name], versions=versions
    )


def _version(version: Version, numbers: list[int], facts: Facts) -> wire.GatewayVersion:
    return wire.GatewayVersion(
        version=version.version,
        endpoints=endpoints(version, facts),
        response_timeout_s=version.manifest.serving.response_timeout_s,
        max_request_bytes=version.manifest.serving.max_request_bytes,
        metadata=metadata(version.manifest, versions=sorted(numbers)),
    )


def _stage(model: str, name: stages.Name, facts: Facts) -> wire.GatewayStage:
    stage = facts.stage(model, name)
    if stage is None:
        return wire.GatewayStage(stage=name, weights=[])
    shifting = next((r for r in facts.rollouts if r.model == model and r.stage is name and r.state == "shifting"), None)
    if shifting is None:
        return wire.GatewayStage(stage=name, weights=strategies.settled(stage))
    weights = strategies.weights(shifting.strategy, to_version=shifting.to_version, stage=stage)
    return wire.GatewayStage(stage=name, weights=weights)


def _endpoint(replica: Replica, version: Version, facts: Facts) -> wire.Endpoint | None:
    server = facts.server(replica, version)
    if server is None or not is_ready(server) or server.rest_port is None or server.grpc_port is None:
        return None
    return wire.Endpoint(
        replica=replica.report.replica, host=server.host, rest_port=server.rest_port, grpc_port=server.grpc_port
    )
