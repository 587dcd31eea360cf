"""Routes that the gateway answers by itself, and the small pieces that all routes are made of."""

from __future__ import annotations

from typing import Any

from serving.gateway import names, problems

Route = dict[str, Any]
Match = dict[str, Any]

RETRY_AFTER_S = 2
"""What a client is told to wait when nothing is ready, in seconds."""

GRPC_STATUS = {
    400: 3,  # INVALID_ARGUMENT
    404: 5,  # NOT_FOUND
    405: 12,  # UNIMPLEMENTED
    413: 8,  # RESOURCE_EXHAUSTED
    503: 14,  # UNAVAILABLE
    504: 4,  # DEADLINE_EXCEEDED
}
"""gRPC's code for what the gateway says in HTTP."""


def set_header(name: str, value: str) -> dict[str, Any]:
    return {"header": {"key": name, "value": value}, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}


def enable() -> dict[str, Any]:
    """Switches a filter on for one route; all of ours are off elsewhere, and then cost nothing."""
    return {"@type": "type.googleapis.com/envoy.config.route.v3.FilterConfig", "config": {}}


def json_body(match: Match, status: int, body: dict[str, Any], *, content_type: str = "application/json") -> Route:
    return {
        "match": match,
        "direct_response": {"status": status, "body": {"inline_string": problems.encode(body)}},
        "response_headers_to_add": [set_header("content-type", content_type)],
    }


def problem(match: Match, body: dict[str, Any], *, version: int | None = None) -> Route:
    """Answer with an error; ``version`` is named in the header where one was meant."""
    route = json_body(match, body["status"], body, content_type=problems.CONTENT_TYPE)
    headers = route["response_headers_to_add"]
    if version is not None:
        headers.append(set_header(names.VERSION_HEADER, str(version)))
    if body["status"] == 503:
        headers.append(set_header("retry-after", str(RETRY_AFTER_S)))
    if "allow" in body:
        headers.append(set_header("allow", body["allow"]))
    return route


def grpc_problem(match: Match, body: dict[str, Any], *, lua: dict[str, Any] | None = None) -> Route:
    """The same as a gRPC status, the detail as its message.

    Args:
        lua: what ``grpc.lua`` is told about the route; without it the filter stays off.
    """
    route: Route = {
        "match": match,
        "direct_response": {"status": body["status"], "body": {"inline_string": body["detail"]}},
        "response_headers_to_add": [set_header("grpc-status", str(GRPC_STATUS[body["status"]]))],
    }
    if lua is not None:
        route["typed_per_filter_config"] = {names.GRPC_FILTER: enable()}
        route["metadata"] = {"filter_metadata": {"envoy.filters.http.lua": lua}}
    return route
