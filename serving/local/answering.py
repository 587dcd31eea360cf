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

from serving.domain import stages, wire
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
    answer = await client.get(f"{stack.control_plane}/v1/gateway/config")
    answer.raise_for_status()
    config = wire.GatewayConfig.model_validate_json(answer.content)
    answer = await client.get(f"{stack.agent}/v1/servers")
    answer.raise_for_status()
    report = wire.ReplicaReport.model_validate_json(answer.content)
    if (missing := unready(config, report)) is not None:
        return missing
    if (lacking := unrouted(config, report)) is not None:
        return Missing(what=f"the control plane does not route {lacking} yet")
    gateways = await client.get(f"{stack.control_plane}/v1/gateways")
    gateways.raise_for_status()
    if not any(_serves(gateway, config.revision, stack) for gateway in gateways.json()["items"]):
        return Missing(what="the gateway does not serve the newest configuration yet")
    for model in in_production(config):
        answer = await client.get(f"{stack.gateway}/v2/models/{model}/ready")
        if answer.status_code != 200:
            return Missing(what=f"the gateway does not answer for {model} yet")
    return None


def unready(config: wire.GatewayConfig, report: wire.ReplicaReport) -> Missing | None:
    """What the replica has not ready of all that some stage serves.

    A version that only waits to be rolled back to may come later.
    """
    servers = {server.ref: server for server in report.servers}
    waiting: list[str] = []
    failed: list[wire.ServerReport] = []
    for ref in served(config):
        server = servers.get(ref)
        if server is None:
            waiting.append(f"{ref} is not begun")
        elif server.state is wire.ServerState.FAILED:
            failed.append(server)
        elif server.state is not wire.ServerState.READY:
            waiting.append(f"{ref} is {server.state}")
    if waiting:
        return Missing(what=", ".join(waiting))
    if failed:
        return Missing(what=f"{failed[0].ref} cannot be loaded: {failed[0].error}", final=True)
    return None


def unrouted(config: wire.GatewayConfig, report: wire.ReplicaReport) -> wire.VersionRef | None:
    """A version that the configuration still sends to where the replica had it before."""
    routed = {
        (model.model, version.version, endpoint.rest_port)
        for model in config.models
        for version in model.versions
        for endpoint in version.endpoints
        if endpoint.replica == report.replica
    }
    wanted = served(config)
    for server in report.servers:
        if server.ref in wanted and (server.model, server.version, server.rest_port) not in routed:
            return server.ref
    return None


def served(config: wire.GatewayConfig) -> set[wire.VersionRef]:
    """Every version that some stage sends requests to."""
    return {
        wire.VersionRef(model=model.model, version=weighted.version)
        for model in config.models
        for stage in model.stages
        for weighted in stage.weights
        if weighted.weight
    }


def in_production(config: wire.GatewayConfig) -> list[str]:
    """Models that answer without a stage being named."""
    return [
        model.model
        for model in config.models
        for stage in model.stages
        if stage.stage == stages.Name.PRODUCTION and stage.weights
    ]


def _serves(gateway: dict[str, Any], revision: str, stack: Stack) -> bool:
    """A report from before this start says nothing about now."""
    seen = datetime.fromisoformat(str(gateway["last_seen"]))
    seen = seen if seen.tzinfo else seen.replace(tzinfo=UTC)
    is_new = stack.started_at is None or seen >= stack.started_at
    return bool(gateway["live"]) and is_new and gateway["applied_revision"] == revision
