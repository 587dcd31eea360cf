"""The table that a request's route is found in: by the model first, in one step however many models there are.

Envoy looks for the longest prefix of the path among ``/predictions/{model}`` and ``/v2/models/{model}``, or for the
model's name that ``grpc.lua`` has read, and then goes through the few routes of that model. A prefix is no proof
(``/predictions/digits2`` begins with ``/predictions/digits``), so each list ends in the refusal of what is unknown.
"""

from __future__ import annotations

from typing import Any

from serving.domain import wire
from serving.gateway import answers, clusters, names, problems, routes

Resource = dict[str, Any]

METADATA_BYTES = 1024 * 1024
"""Largest body that a route may answer by itself."""

DEFAULT_LIMIT_BYTES = 64 * 1024 * 1024

HEADER_INPUT = "type.googleapis.com/envoy.type.matcher.v3.HttpRequestHeaderMatchInput"


def of(config: wire.GatewayConfig, *, cap: int | None) -> Resource:
    """The table of a configuration.

    Args:
        cap: the gateway's own limit on requests, in bytes.
    """
    by_path: dict[str, Resource] = {}
    by_name: dict[str, Resource] = {}
    for model in config.models:
        rest = [*_methods(), *routes.inference(model, routes.REST, cap=cap), *_unknown()]
        oip = [*_methods(), *_metadata(model), *routes.inference(model, routes.OIP, cap=cap), *_unknown()]
        by_path[f"/predictions/{model.model}"] = _list(rest)
        by_path[f"/v2/models/{model.model}"] = _list(oip)
        by_name[model.model] = _list([*_grpc_front(), *routes.inference(model, routes.GRPC, cap=cap)])
    first = _list([*_grpc_front(), *_grpc_back(config, cap)])
    by_path[names.TORCHSERVE_GRPC] = _tree(names.MODEL_HEADER, "exact_match_map", by_name, otherwise=first)
    others = _list([*_methods(), *_health(), *_grpc_front(), *_grpc_back(config, cap), *_unknown()])
    return _tree(":path", "prefix_match_map", by_path, otherwise=others)["matcher"]


def unconfigured() -> Resource:
    """The table of a gateway that has never had a configuration."""
    everything = _list(
        [
            answers.json_body({"path": "/v2/health/live"}, 200, {"live": True}),
            answers.grpc_problem(_grpc("/"), problems.not_configured()),
            answers.problem({"prefix": "/"}, problems.not_configured()),
        ]
    )
    return {"on_no_match": everything}


def configuration(table: Resource) -> Resource:
    """Envoy's ``RouteConfiguration`` around a table."""
    internal = [names.MODEL_HEADER, names.NUMBER_HEADER, names.PROTOCOL_HEADER]
    return {
        "@type": "type.googleapis.com/envoy.config.route.v3.RouteConfiguration",
        "name": names.ROUTES,
        "max_direct_response_body_size_bytes": METADATA_BYTES,
        # A route's own header wins over what is removed here.
        "most_specific_header_mutations_wins": True,
        # "describe" and "explain" send a whole batch of TorchServe down another path.
        "request_headers_to_remove": ["describe", "explain", *internal],
        # TorchServe's own mark on the pieces of a stream.
        "response_headers_to_remove": ["ts_stream_next"],
        "virtual_hosts": [
            {
                "name": names.ROUTES,
                "domains": ["*"],
                "request_body_buffer_limit": routes.RETRY_BUFFER_BYTES,
                "retry_policy": routes.retry_policy(),
                "matcher": table,
            }
        ],
    }


def _list(listed: list[Resource]) -> Resource:
    """Routes to go through in order, as what a match leads to."""
    action = {"@type": "type.googleapis.com/envoy.config.route.v3.RouteList", "routes": listed}
    return {"action": {"name": "routes", "typed_config": action}}


def _tree(header: str, kind: str, branches: dict[str, Resource], *, otherwise: Resource) -> Resource:
    """A choice by a header's value, as what a match leads to."""
    tree: Resource = {"on_no_match": otherwise}
    if branches:
        read = {"name": header, "typed_config": {"@type": HEADER_INPUT, "header_name": header}}
        tree["matcher_tree"] = {"input": read, kind: {"map": branches}}
    return {"matcher": tree}


def _unknown() -> list[Resource]:
    return [
        _unknown_model({"prefix": "/predictions/"}),
        _unknown_model({"prefix": "/v2/models/"}),
        answers.problem({"prefix": "/"}, problems.unknown_address()),
    ]


def _methods() -> list[Resource]:
    def refuse(match: Resource, *allowed: str) -> Resource:
        method = {
            "name": ":method",
            "string_match": {"safe_regex": {"regex": "|".join(allowed)}},
            "invert_match": True,
        }
        return answers.problem(match | {"headers": [method]}, problems.method_not_allowed(", ".join(allowed)))

    return [
        # PUT as well: "curl -T image.jpg" is how TorchServe's own documentation sends one.
        refuse({"prefix": "/predictions/"}, "POST", "PUT"),
        refuse({"safe_regex": {"regex": "/v2/models/.+/infer"}}, "POST"),
        refuse({"safe_regex": {"regex": "/v2/models/[^/]+(/versions/[^/]+)?(/ready)?"}}, "GET", "HEAD"),
    ]


def _health() -> list[Resource]:
    server = {"name": names.SERVER, "version": names.server_version(), "extensions": ["binary_tensor_data"]}
    return [
        answers.json_body({"path": "/v2/health/live"}, 200, {"live": True}),
        answers.json_body({"path": "/v2/health/ready"}, 200, {"ready": True}),
        answers.json_body({"path": "/ping"}, 200, {"status": "Healthy"}),
        answers.json_body({"path": "/v2"}, 200, server),
    ]


def _metadata(model: wire.GatewayModel) -> list[Resource]:
    """The Open Inference Protocol's metadata and readiness of a model and of its versions."""
    ready = {version.version: bool(version.endpoints) for version in model.versions}
    path = f"/v2/models/{model.model}"
    listed: list[Resource] = []
    for version in model.versions:
        listed += _facts(model.model, version, f"{path}/versions/{version.version}", ready=ready[version.version])
    for stage in sorted(model.stages, key=lambda stage: stage.stage == names.PRODUCTION):
        numbers = [entry.version for entry in stage.weights if entry.weight > 0]
        newest = max((version for version in model.versions if version.version in numbers), default=None, key=_number)
        extra: Resource = {}
        if stage.stage != names.PRODUCTION:
            extra = {"headers": [routes.named_stage(stage.stage)]}
        else:
            for address in (path, f"{path}/ready"):
                match = {"path": address, "headers": [routes.other_stage()]}
                listed.append(answers.problem(match, routes.unknown_stage(model)))
        if newest is None:
            empty = problems.empty_stage(model.model, stage.stage)
            listed += [answers.problem({"path": address} | extra, empty) for address in (path, f"{path}/ready")]
        else:
            # Ready is what every request would find, whichever of the stage's versions it is sent to.
            listed += _facts(
                model.model, newest, path, ready=all(ready.get(number, False) for number in numbers), extra=extra
            )
    return listed


def _number(version: wire.GatewayVersion) -> int:
    return version.version


def _facts(
    model: str, version: wire.GatewayVersion, path: str, *, ready: bool, extra: Resource | None = None
) -> list[Resource]:
    header = answers.set_header(names.VERSION_HEADER, str(version.version))
    found = answers.json_body({"path": path} | (extra or {}), 200, version.metadata)
    match = {"path": f"{path}/ready"} | (extra or {})
    if ready:
        readiness = answers.json_body(match, 200, {"name": model, "ready": True})
    else:
        readiness = answers.problem(match, problems.not_ready(model, version.version) | {"name": model, "ready": False})
    for route in (found, readiness):
        route["response_headers_to_add"].append(header)
    return [found, readiness]


def _grpc(prefix: str) -> Resource:
    content_type = {"name": "content-type", "string_match": {"prefix": "application/grpc"}}
    return {"prefix": prefix, "headers": [content_type]}


def _grpc_front() -> list[Resource]:
    """gRPC methods that no model answers, ahead of all models'."""
    adapter = {"cluster": names.OIP_ADAPTER, "timeout": "0s"}
    others = {
        "name": ":path",
        "string_match": {"safe_regex": {"regex": f"{names.TORCHSERVE_GRPC}(Stream)?Predictions"}},
        "invert_match": True,
    }
    return [
        {"match": {"prefix": names.OIP_GRPC}, "route": adapter},
        {"match": {"path": f"{names.TORCHSERVE_GRPC}Ping"}, "route": adapter},
        _unimplemented({"prefix": names.TORCHSERVE_GRPC, "headers": [others]}),
    ]


def _grpc_back(config: wire.GatewayConfig, cap: int | None) -> list[Resource]:
    """Where a prediction over gRPC arrives first: ``grpc.lua`` reads the message, and the routes are asked again."""
    limits = [clusters.limit_bytes(version, cap) for model in config.models for version in model.versions]
    problem = problems.problem("unknown-model", 404, "No such model", "no such model is served")
    first = answers.grpc_problem({"prefix": names.TORCHSERVE_GRPC}, problem, lua={"known": False})
    first["typed_per_filter_config"][names.BUFFER_FILTER] = routes.buffered(max(limits, default=DEFAULT_LIMIT_BYTES))
    return [first, _unimplemented(_grpc("/"))]


def _unimplemented(match: Resource) -> Resource:
    body = problems.problem("unknown-method", 405, "No such method", "the gateway serves no such gRPC method")
    return answers.grpc_problem(match, body)


def _unknown_model(match: Resource) -> Resource:
    route = answers.problem(match, problems.unknown_address())
    return route | {"typed_per_filter_config": {names.UNKNOWN_FILTER: answers.enable()}}
