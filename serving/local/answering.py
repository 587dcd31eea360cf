"""Whether a stack that has started really answers: everything that was promoted, through the gateway."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import httpx
from pydantic import ValidationError

from serving.domain import wire
from serving.local import errors
from serving.local.home import Stack

POLL_S = 0.2
TIMEOUT_S = 5.0


@dataclass(frozen=True, kw_only=True)
class Missing:
    """Why a stack does not answer yet; ``final`` when waiting longer would not help."""

    what: str
    final: bool = False


async def wait(stack: Stack, *, timeout_s: float, tell: Callable[[str], None] = lambda _: None) -> None:
    """Return once all that is promoted answers.

    Args:
        tell: called with what is missing, whenever that changes.

    Raises:
        NotAnswering: a version cannot be loaded, or the time is up.
    """
    deadline = time.monotonic() + timeout_s
    told = ""
    async with httpx.AsyncClient(trust_env=False, timeout=TIMEOUT_S) as client:
        while True:
            missing = await look(client, stack)
            if missing is None:
                return
            if missing.final:
                raise errors.NotAnswering(missing.what)
            if time.monotonic() >= deadline:
                raise errors.NotAnswering(f"after {timeout_s:g} s: {missing.what}")
            if missing.what != told:
                told = missing.what
                tell(told)
            await asyncio.sleep(POLL_S)


async def look(client: httpx.AsyncClient, stack: Stack) -> Missing | None:
    """The first thing that is missing, from the replica outwards; ``None`` when nothing is."""
    try:
        return await _look(client, stack)
    except (httpx.HTTPError, ValidationError, ValueError) as error:
        return Missing(what=f"a part does not answer ({error or type(error).__name__})")


async def _look(client: httpx.AsyncClient, stack: Stack) -> Missing | None:
    ready = await client.get(f"{stack.agent}/readyz")
    report = wire.ReplicaReport.model_validate_json((await client.get(f"{stack.agent}/v1/servers")).content)
    if ready.status_code != 200:
        return _not_loaded(ready.json(), report)
    answer = await client.get(f"{stack.control_plane}/v1/gateway/config")
    answer.raise_for_status()
    config = wire.GatewayConfig.model_validate_json(answer.content)
    if (lacking := unrouted(report, config)) is not None:
        return Missing(what=f"the control plane does not route {lacking} yet")
    gateways = await client.get(f"{stack.control_plane}/v1/gateways")
    gateways.raise_for_status()
    if not any(_serves(gateway, config.revision, stack) for gateway in gateways.json()["items"]):
        return Missing(what="the gateway does not serve the newest configuration yet")
    for model in promoted(config):
        answer = await client.get(f"{stack.gateway}/v2/models/{model}/ready")
        if answer.status_code != 200:
            return Missing(what=f"the gateway does not answer for {model} yet")
    return None


def _not_loaded(ready: dict[str, Any], report: wire.ReplicaReport) -> Missing:
    if ready.get("assigned") is None:
        return Missing(what="the agent has no assignment yet")
    waiting = [server for server in report.servers if server.state is not wire.ServerState.READY]
    failed = [server for server in waiting if server.state is wire.ServerState.FAILED]
    if failed and len(failed) == len(waiting):
        return Missing(what=f"{failed[0].ref} cannot be loaded: {failed[0].error}", final=True)
    states = ", ".join(f"{server.ref} is {server.state}" for server in waiting)
    return Missing(what=states or "the agent has not begun to load what is assigned")


def unrouted(report: wire.ReplicaReport, config: wire.GatewayConfig) -> wire.VersionRef | None:
    """A version that the replica has ready and that the configuration does not send there, or sends elsewhere."""
    routed = {
        (model.model, version.version, endpoint.rest_port)
        for model in config.models
        for version in model.versions
        for endpoint in version.endpoints
        if endpoint.replica == report.replica
    }
    for server in report.servers:
        known = any(model.model == server.model for model in config.models)
        is_routed = (server.model, server.version, server.rest_port) in routed
        if known and server.state is wire.ServerState.READY and not is_routed:
            return server.ref
    return None


def promoted(config: wire.GatewayConfig) -> list[str]:
    """Models that have a version in production."""
    return [
        model.model
        for model in config.models
        for stage in model.stages
        if stage.stage == "production" and stage.weights
    ]


def _serves(gateway: dict[str, Any], revision: str, stack: Stack) -> bool:
    """A report from before this start says nothing about now."""
    seen = datetime.fromisoformat(str(gateway["last_seen"]))
    seen = seen if seen.tzinfo else seen.replace(tzinfo=UTC)
    is_new = stack.started_at is None or seen >= stack.started_at
    return bool(gateway["live"]) and is_new and gateway["applied_revision"] == revision
