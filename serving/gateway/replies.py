"""What Envoy says when it answers in a version's place: the same bodies and codes as everywhere in the data plane."""

from __future__ import annotations

from typing import Any

from serving.gateway import answers, problems

Mapper = dict[str, Any]

WHAT = "%CLUSTER_METADATA(slipway:what)%"

# Envoy's response flags.
NO_ENDPOINT = ("UH", "UO", "NC")
BROKEN = ("UC", "UR", "UPE", "LR")
UNREACHABLE = ("UF", "URX")


def config() -> dict[str, Any]:
    """``local_reply_config``: first match wins; what matches nothing (our own direct answers) stays as it is."""
    causes = [
        _cause("not-ready", 503, "No replica is ready", f"no replica of {WHAT} is ready; try again", flags=NO_ENDPOINT),
        _cause(
            "unreachable",
            503,
            "No replica took the request",
            f"no replica of {WHAT} took the connection; try again",
            flags=UNREACHABLE,
        ),
        _cause(
            "connection-lost",
            503,
            "The replica went away",
            f"the connection to {WHAT} ended before its answer; whether it worked on the request is unknown",
            flags=BROKEN,
        ),
        _cause(
            "timeout",
            504,
            "The model took too long",
            f"{WHAT} did not answer within %CLUSTER_METADATA(slipway:timeout_s)% s",
            timeout_s="%CLUSTER_METADATA(slipway:timeout_s)%",
        ),
        _cause(
            "request-too-large",
            413,
            "The request is too large",
            f"{WHAT} accepts requests of up to %CLUSTER_METADATA(slipway:limit_bytes)% bytes",
            only=(_without_length(),),
            limit_bytes="%CLUSTER_METADATA(slipway:limit_bytes)%",
        ),
        _cause("request-timeout", 408, "The request stalled", "the request did not arrive in full in time"),
        _cause("headers-too-large", 431, "The headers are too large", "the request's headers are too large"),
    ]
    mappers = [mapper for pair in causes for mapper in pair]
    mappers.append(_plain("malformed-request", 400, "Malformed request", "the request breaks the rules of HTTP"))
    return {"mappers": mappers}


def _cause(
    kind: str,
    status: int,
    title: str,
    detail: str,
    *,
    flags: tuple[str, ...] = (),
    only: tuple[dict[str, Any], ...] = (),
    **extras: Any,
) -> tuple[Mapper, Mapper]:
    """One cause, told in gRPC and in JSON.

    Args:
        flags: Envoy's response flags, one of which has to be set.
        only: further filters.
    """
    grpc: Mapper = {
        "filter": _all(_is_grpc(), *_when(status, flags), *only),
        "body_format_override": {"text_format_source": {"inline_string": detail}},
        "headers_to_add": [answers.set_header("grpc-status", str(answers.GRPC_STATUS.get(status, 14)))],
    }
    body = problems.problem(
        kind,
        status,
        title,
        detail,
        model="%CLUSTER_METADATA(slipway:model)%",
        version="%CLUSTER_METADATA(slipway:version)%",
        **extras,
    )
    rest: Mapper = {
        "filter": _all(*_when(status, flags), *only),
        "body_format_override": {"json_format": body, "content_type": problems.CONTENT_TYPE},
    }
    if status == 503:
        rest["headers_to_add"] = [answers.set_header("retry-after", str(answers.RETRY_AFTER_S))]
    return grpc, rest


def _plain(kind: str, status: int, title: str, detail: str) -> Mapper:
    return {
        "filter": _all(*_when(status, ("DPE",))),
        "body_format_override": {
            "json_format": problems.problem(kind, status, title, detail),
            "content_type": problems.CONTENT_TYPE,
        },
    }


def _all(*filters: dict[str, Any]) -> dict[str, Any]:
    listed = list(filters)
    return listed[0] if len(listed) == 1 else {"and_filter": {"filters": listed}}


def _is_grpc() -> dict[str, Any]:
    header = {"name": "content-type", "string_match": {"prefix": "application/grpc"}}
    return {"header_filter": {"header": header}}


def _without_length() -> dict[str, Any]:
    """A body of announced length is refused by its route, which knows the limit and says it already."""
    return {"header_filter": {"header": {"name": "content-length", "present_match": False}}}


def _when(status: int, flags: tuple[str, ...]) -> list[dict[str, Any]]:
    value = {"default_value": status, "runtime_key": "slipway.unused"}
    filters: list[dict[str, Any]] = [{"status_code_filter": {"comparison": {"op": "EQ", "value": value}}}]
    if flags:
        filters.append({"response_flag_filter": {"flags": list(flags)}})
    return filters
