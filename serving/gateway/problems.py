"""Error bodies of the data plane: RFC 9457 problem+json, the same from gateway and handlers."""

from __future__ import annotations

import json
from typing import Any

CONTENT_TYPE = "application/problem+json"


def problem(kind: str, status: int, title: str, detail: str, **extras: Any) -> dict[str, Any]:
    """A problem's members, in the order in which they are written.

    Args:
        kind: what programs tell errors apart by; becomes ``urn:slipway:error:<kind>``.
        detail: for people: what was wrong, what was expected, what to do.
        extras: members such as ``model``, ``version``, ``limit_bytes``.
    """
    return {"type": f"urn:slipway:error:{kind}", "status": status, "title": title, "detail": detail, **extras}


def encode(body: dict[str, Any]) -> str:
    """Compact JSON."""
    return json.dumps(body, separators=(",", ":"), ensure_ascii=False)


def unknown_version(model: str, known: list[int]) -> dict[str, Any]:
    loaded = ", ".join(map(str, known)) or "none"
    return problem(
        "unknown-version",
        404,
        "No such version is loaded",
        f"the requested version of {model} is not loaded (loaded: {loaded}); promote it to a stage first",
        model=model,
        loaded=known,
    )


def unknown_stage(model: str, known: list[str]) -> dict[str, Any]:
    return problem(
        "unknown-stage",
        404,
        "No such stage",
        f"{model} has no stage by the name in the header slipway-stage (stages: {', '.join(known) or 'none'})",
        model=model,
        stages=known,
    )


def empty_stage(model: str, stage: str) -> dict[str, Any]:
    return problem(
        "nothing-promoted",
        404,
        "The stage serves no version",
        f'no version of {model} was promoted to {stage} yet; run "slipway promote {model} VERSION --to {stage}"',
        model=model,
        stage=stage,
    )


def not_ready(model: str, version: int | None = None) -> dict[str, Any]:
    what = model if version is None else f"{model} version {version}"
    return problem(
        "not-ready",
        503,
        "No replica is ready",
        f"no replica of {what} is ready; try again",
        model=model,
        version=version,
    )


def too_large(model: str, version: int, limit_bytes: int) -> dict[str, Any]:
    return problem(
        "request-too-large",
        413,
        "The request is too large",
        f"{model} version {version} accepts requests of up to {limit_bytes} bytes",
        model=model,
        version=version,
        limit_bytes=limit_bytes,
    )


def method_not_allowed(allowed: str) -> dict[str, Any]:
    return problem("method-not-allowed", 405, "Method not allowed", f"this address answers {allowed}", allow=allowed)


def unknown_address() -> dict[str, Any]:
    return problem(
        "unknown-address",
        404,
        "Nothing is served here",
        "the gateway answers /predictions/{model}[/{version}], /v2/models/{model}/infer and /v2/health/ready",
    )


def not_configured() -> dict[str, Any]:
    return problem(
        "not-configured", 503, "The gateway has no configuration yet", "no control plane has answered it so far"
    )
