"""Routes: which version answers a request, or which error does.

One model is reached through three doors: TorchServe's REST addresses, the Open Inference Protocol's, and TorchServe's
gRPC service. Behind each door stand the same choices, in this order: a stage by header, production, a version by
number. Every route leads to exactly one version, and so carries that version's own timeout, size limit and header;
a stage that is split over versions is a run of routes with growing fractions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from serving.domain import wire
from serving.gateway import answers, clusters, names, problems

Route = dict[str, Any]
Match = dict[str, Any]

RETRIES = 2
RETRY_BUFFER_BYTES = 4 * 1024 * 1024
"""Bodies up to this size are kept until an answer begins, so that a safe retry can send them again."""

FULL = 10_000
INT64_MAX = 2**63 - 1

FILTER_CONFIG = "type.googleapis.com/envoy.config.route.v3.FilterConfig"
BUFFER_PER_ROUTE = "type.googleapis.com/envoy.extensions.filters.http.buffer.v3.BufferPerRoute"


@dataclass(frozen=True, kw_only=True)
class Target:
    """One version, and how a door reaches it."""

    model: str
    version: wire.GatewayVersion
    limit_bytes: int


class Door(Protocol):
    """How requests of one kind name a model, and how they are passed on."""

    def stage(self, model: str) -> Match:
        """Matches requests that name the model without a version."""
        ...

    def number(self, model: str, version: int) -> Match: ...

    def any_number(self, model: str) -> Match: ...

    def forward(self, match: Match, target: Target) -> list[Route]:
        """Routes that send what matches to a version."""
        ...

    def refuse(self, match: Match, problem: dict[str, Any]) -> Route: ...


@dataclass(frozen=True, kw_only=True)
class RestDoor:
    """A door of HTTP paths; a version's server process sees ``/predictions/{model}/{version}`` through any of them."""

    stage_path: str
    version_path: str
    any_version_prefix: str
    protocol: str | None = None
    """Told to the handler in the header ``slipway-protocol``."""

    def stage(self, model: str) -> Match:
        return {"path": self.stage_path.format(model=model)}

    def number(self, model: str, version: int) -> Match:
        return {"path": self.version_path.format(model=model, version=version)}

    def any_number(self, model: str) -> Match:
        return {"prefix": self.any_version_prefix.format(model=model)}

    def forward(self, match: Match, target: Target) -> list[Route]:
        length = "content-length"
        larger = {"name": length, "range_match": {"start": target.limit_bytes + 1, "end": INT64_MAX}}
        absent = {"name": length, "present_match": False}
        refusal = problems.too_large(target.model, target.version.version, target.limit_bytes)
        return [
            answers.problem(_with_header(match, larger), refusal, version=target.version.version),
            # A body of unannounced length has to be counted before its first byte is passed on.
            self._pass(_with_header(match, absent), target, counted=True),
            self._pass(match, target, counted=False),
        ]

    def refuse(self, match: Match, problem: dict[str, Any]) -> Route:
        return answers.problem(match, problem)

    def _pass(self, match: Match, target: Target, *, counted: bool) -> Route:
        version = target.version.version
        filters = {names.ERRORS_FILTER: answers.enable()}
        if counted:
            filters[names.BUFFER_FILTER] = buffered(target.limit_bytes)
        added = [answers.set_header(names.PROTOCOL_HEADER, self.protocol)] if self.protocol else []
        return {
            "match": match,
            "route": _action(target, "rest") | {"regex_rewrite": _rewrite(f"/predictions/{target.model}/{version}")},
            "request_headers_to_add": added,
            "response_headers_to_add": [answers.set_header(names.VERSION_HEADER, str(version))],
            "typed_per_filter_config": filters,
            "metadata": _metadata(target),
        }


class GrpcDoor:
    """TorchServe's gRPC service: ``grpc.lua`` has put the message's model and version into headers."""

    def stage(self, model: str) -> Match:
        return self._model(model, {"name": names.NUMBER_HEADER, "present_match": False})

    def number(self, model: str, version: int) -> Match:
        return self._model(model, {"name": names.NUMBER_HEADER, "string_match": {"exact": str(version)}})

    def any_number(self, model: str) -> Match:
        return self._model(model, {"name": names.NUMBER_HEADER, "present_match": True})

    def forward(self, match: Match, target: Target) -> list[Route]:
        version = target.version.version
        return [
            {
                "match": match,
                "route": _action(target, "grpc"),
                "response_headers_to_add": [answers.set_header(names.VERSION_HEADER, str(version))],
                "typed_per_filter_config": {
                    names.GRPC_FILTER: answers.enable(),
                    names.BUFFER_FILTER: buffered(target.limit_bytes),
                },
                "metadata": _metadata(target),
            }
        ]

    def refuse(self, match: Match, problem: dict[str, Any]) -> Route:
        return answers.grpc_problem(match, problem, lua={"known": True})

    def _model(self, model: str, number: Match) -> Match:
        exact = {"name": names.MODEL_HEADER, "string_match": {"exact": model}}
        return {"prefix": names.TORCHSERVE_GRPC, "headers": [exact, number]}


REST = RestDoor(
    stage_path="/predictions/{model}",
    version_path="/predictions/{model}/{version}",
    any_version_prefix="/predictions/{model}/",
)
OIP = RestDoor(
    stage_path="/v2/models/{model}/infer",
    version_path="/v2/models/{model}/versions/{version}/infer",
    any_version_prefix="/v2/models/{model}/versions/",
    protocol=names.OIP_PROTOCOL,
)
GRPC = GrpcDoor()


def inference(model: wire.GatewayModel, door: Door, *, cap: int | None) -> Iterator[Route]:
    """All routes of one model through one door."""
    known = {version.version: version for version in model.versions}
    for stage in sorted(model.stages, key=lambda stage: stage.stage == names.PRODUCTION):
        match = door.stage(model.model)
        if stage.stage == names.PRODUCTION:
            yield door.refuse(_with_header(match, other_stage()), unknown_stage(model))
        else:
            match = _with_header(match, named_stage(stage.stage))
        yield from _stage(model.model, stage, known, door, match, cap=cap)
    for version in model.versions:
        target = Target(model=model.model, version=version, limit_bytes=clusters.limit_bytes(version, cap))
        yield from door.forward(door.number(model.model, version.version), target)
    if all(stage.stage != names.PRODUCTION for stage in model.stages):
        yield door.refuse(door.stage(model.model), problems.empty_stage(model.model, names.PRODUCTION))
    yield door.refuse(door.any_number(model.model), problems.unknown_version(model.model, sorted(known)))


def unknown_stage(model: wire.GatewayModel) -> dict[str, Any]:
    return problems.unknown_stage(model.model, [stage.stage for stage in model.stages])


def retry_policy() -> dict[str, Any]:
    """Of all routes: only while nothing of the request can have reached a handler."""
    predicate = "type.googleapis.com/envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate"
    return {
        "retry_on": "connect-failure,refused-stream,reset-before-request",
        "num_retries": RETRIES,
        "retry_host_predicate": [
            {"name": "envoy.retry_host_predicates.previous_hosts", "typed_config": {"@type": predicate}}
        ],
        "host_selection_retry_max_attempts": 3,
    }


def named_stage(stage: str) -> Match:
    return {"name": names.STAGE_HEADER, "string_match": {"exact": stage}}


def other_stage() -> Match:
    """Matches a stage header that names anything but production (a missing header does not match)."""
    return {
        "name": names.STAGE_HEADER,
        "string_match": {"exact": names.PRODUCTION},
        "invert_match": True,
        "treat_missing_header_as_empty": False,
    }


def buffered(limit_bytes: int) -> dict[str, Any]:
    """Lets the buffer filter hold the whole body; past the limit it answers 413."""
    return {"@type": BUFFER_PER_ROUTE, "buffer": {"max_request_bytes": limit_bytes}}


def shares(stage: wire.GatewayStage) -> list[tuple[int, int]]:
    """Versions of a stage with growing fractions of 10,000; the last is always the whole."""
    weights = [(entry.version, entry.weight) for entry in stage.weights if entry.weight > 0]
    total = sum(weight for _, weight in weights)
    result: list[tuple[int, int]] = []
    so_far = 0
    for version, weight in weights:
        so_far += weight
        result.append((version, round(so_far * FULL / total)))
    return result


def _stage(
    model: str,
    stage: wire.GatewayStage,
    known: dict[int, wire.GatewayVersion],
    door: Door,
    match: Match,
    *,
    cap: int | None,
) -> Iterator[Route]:
    split = shares(stage)
    if not split:
        yield door.refuse(match, problems.empty_stage(model, stage.stage))
    for number, fraction in split:
        part = match if fraction == FULL else match | {"runtime_fraction": _fraction(fraction)}
        version = known.get(number)
        if version is None:
            yield door.refuse(part, problems.not_ready(model, number))
        else:
            target = Target(model=model, version=version, limit_bytes=clusters.limit_bytes(version, cap))
            yield from door.forward(part, target)


def _action(target: Target, protocol: names.Protocol) -> dict[str, Any]:
    return {
        "cluster": names.cluster(target.model, target.version.version, protocol),
        # Not a bound on the whole answer, which may stream for long: a bound on silence, in both directions.
        "timeout": "0s",
        "idle_timeout": f"{target.version.response_timeout_s}s",
    }


def _rewrite(path: str) -> dict[str, Any]:
    # Everything before the query; a prefix rewrite would leave what follows the prefix.
    return {"pattern": {"regex": r"^[^?]*"}, "substitution": path}


def _metadata(target: Target) -> dict[str, Any]:
    facts = {
        "known": True,
        "model": target.model,
        "version": target.version.version,
        "limit_bytes": target.limit_bytes,
    }
    return {"filter_metadata": {"envoy.filters.http.lua": facts}}


def _with_header(match: Match, header: Match) -> Match:
    return match | {"headers": [*match.get("headers", []), header]}


def _fraction(numerator: int) -> dict[str, Any]:
    return {"default_value": {"numerator": numerator, "denominator": "TEN_THOUSAND"}}
