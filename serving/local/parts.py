"""The parts of a stack, declared: what each runs, what it waits for, how it proves itself ready, how it ends."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from serving.gateway import bootstrap, drain, errors
from serving.gateway.settings import Settings as GatewaySettings
from serving.local import leftovers, probes, seaweed
from serving.local.home import Home, Stack
from serving.local.ports import CONTROL_PLANE, GATEWAY, LOOPBACK

log = logging.getLogger(__name__)

STORE = "store"
COMPANION = "gateway-config"
AGENT = "agent"

AGENT_PORT = "agent"
ADMIN_PORT = "gateway.admin"
OIP_PORT = "gateway.oip"

STOP_S = 15.0
AGENT_STOP_S = 60.0
"""TorchServe and its workers end in seconds; several of them on few cores take longer."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """One process of the stack. Durations are seconds."""

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    log: Path
    probe: probes.Probe
    """Tells what is missing until the part is ready."""
    after: tuple[str, ...] = ()
    """Parts that must be ready before this one starts."""
    prepare: Callable[[], None] | None = None
    """Done before every start."""
    drain: Callable[[], Awaitable[None]] | None = None
    """Done before it is told to end."""
    clean: Callable[[], None] | None = None
    """Done once it has ended."""
    signals: int = 1
    """How many SIGTERMs: the agent takes a second one as "now"."""
    start_timeout_s: float = 60.0
    stop_timeout_s: float = STOP_S


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a person may choose about a stack."""

    with_store: bool = True
    """Run a store; otherwise the one that SLIPWAY_STORE names is used."""
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    """What every part starts from."""


def private_ports(options: Options) -> dict[str, int]:
    """What :func:`serving.local.ports.choose` is to find beside the two ports that people know."""
    ours = {AGENT_PORT: 0, ADMIN_PORT: 0, OIP_PORT: 0}
    return ours | seaweed.private_ports() if options.with_store else ours


def build(home: Home, stack: Stack, options: Options) -> list[Part]:
    """The parts in the order of their start; they are stopped by :func:`stop_order`."""
    parts = [_control_plane(home, stack, options), _gateway(home, stack, options), _companion(home, stack, options)]
    parts.append(_agent(home, stack, options))
    return [_store(home, stack, options), *parts] if options.with_store else parts


def stop_order(parts: list[Part]) -> list[Part]:
    """No new request first, then nothing that answers requests, then what those relied on."""
    rank = {name: position for position, name in enumerate((GATEWAY, COMPANION, AGENT, CONTROL_PLANE, STORE))}
    return sorted(parts, key=lambda part: rank.get(part.name, 0))


def environment(home: Home, stack: Stack, options: Options, part: str, more: Mapping[str, str]) -> dict[str, str]:
    """A part's environment: the caller's, the store's address and credentials, and what the part itself needs."""
    base = dict(options.environment)
    if options.with_store:
        # Credentials and endpoints of another store would win over ours.
        for name in [name for name in base if name.startswith(("AWS_", "SLIPWAY_STORE"))]:
            del base[name]
        base |= stack.store.settings().environment()
        base["AWS_EC2_METADATA_DISABLED"] = "true"
    ours = {"PYTHONUNBUFFERED": "1", "NO_PROXY": "127.0.0.1,localhost"}
    return base | ours | leftovers.mark(home, part) | dict(more)


def _python(module: str) -> tuple[str, ...]:
    return (sys.executable, "-m", module)


def _store(home: Home, stack: Stack, options: Options) -> Part:
    credentials = {
        "AWS_ACCESS_KEY_ID": stack.store.access_key or "",
        "AWS_SECRET_ACCESS_KEY": stack.store.secret_key or "",
        "HOME": str(home.store),
    }
    return Part(
        name=STORE,
        command=seaweed.command(folder=home.store, ports=stack.ports),
        environment=environment(home, stack, options, STORE, credentials),
        log=home.log(STORE),
        probe=probes.bucket(stack.store.settings(), s3_port=stack.ports[seaweed.port_name("s3.port")]),
        prepare=lambda: seaweed.remove_sockets(stack.ports),
        clean=lambda: seaweed.remove_sockets(stack.ports),
    )


def _control_plane(home: Home, stack: Stack, options: Options) -> Part:
    more = {
        "SLIPWAY_DATABASE_URL": options.environment.get("SLIPWAY_DATABASE_URL") or home.database_url,
        "SLIPWAY_API_HOST": LOOPBACK,
        "SLIPWAY_API_PORT": str(stack.ports[CONTROL_PLANE]),
    }
    return Part(
        name=CONTROL_PLANE,
        command=_python("serving.api"),
        environment=environment(home, stack, options, CONTROL_PLANE, more),
        log=home.log(CONTROL_PLANE),
        probe=probes.http(f"{stack.control_plane}/readyz"),
        after=(STORE,) if options.with_store else (),
    )


def _gateway_environment(home: Home, stack: Stack, options: Options, part: str) -> dict[str, str]:
    more = {
        "SLIPWAY_CONTROL_URL": stack.control_plane,
        "SLIPWAY_GATEWAY_ID": options.environment.get("SLIPWAY_GATEWAY_ID") or "local",
        "SLIPWAY_GATEWAY_DIR": str(home.gateway),
        "SLIPWAY_GATEWAY_HOST": LOOPBACK,
        "SLIPWAY_GATEWAY_PORT": str(stack.ports[GATEWAY]),
        "SLIPWAY_GATEWAY_URL": stack.gateway,
        "SLIPWAY_GATEWAY_ADMIN_PORT": str(stack.ports[ADMIN_PORT]),
        "SLIPWAY_GATEWAY_OIP_PORT": str(stack.ports[OIP_PORT]),
    }
    return environment(home, stack, options, part, more)


def _gateway(home: Home, stack: Stack, options: Options) -> Part:
    variables = _gateway_environment(home, stack, options, GATEWAY)
    settings = GatewaySettings.from_env(variables)
    return Part(
        name=GATEWAY,
        command=tuple(bootstrap.command(settings)),
        environment=variables,
        log=home.log(GATEWAY),
        probe=probes.http(f"http://{LOOPBACK}:{settings.admin_port}/ready"),
        prepare=lambda: _write_bootstrap(settings),
        drain=lambda: _drain(settings.admin_port),
        stop_timeout_s=STOP_S,
    )


async def _drain(admin_port: int) -> None:
    """Empty the gateway; one that is gone, or does not get empty in time, does not keep the stack from stopping."""
    try:
        left = await drain.drain(admin_port=admin_port)
    except errors.EnvoyUnreachable as error:
        log.warning("the gateway could not be drained: %s", error)
    else:
        if left:
            log.warning("%d requests were still in flight when the gateway was stopped", left)


def _write_bootstrap(settings: GatewaySettings) -> None:
    bootstrap.write(settings)


def _companion(home: Home, stack: Stack, options: Options) -> Part:
    return Part(
        name=COMPANION,
        command=_python("serving.gateway.companion"),
        environment=_gateway_environment(home, stack, options, COMPANION),
        log=home.log(COMPANION),
        probe=probes.port(stack.ports[OIP_PORT]),
        after=(GATEWAY, CONTROL_PLANE),
    )


def _agent(home: Home, stack: Stack, options: Options) -> Part:
    more = {
        "SLIPWAY_CONTROL_URL": stack.control_plane,
        "SLIPWAY_POOL": options.environment.get("SLIPWAY_POOL") or "cpu",
        "SLIPWAY_REPLICA": options.environment.get("SLIPWAY_REPLICA") or "local",
        "SLIPWAY_AGENT_HOME": str(home.agent),
        "SLIPWAY_AGENT_PORT": str(stack.ports[AGENT_PORT]),
        "SLIPWAY_ADVERTISE_HOST": LOOPBACK,
    }
    return Part(
        name=AGENT,
        command=_python("serving.agent"),
        environment=environment(home, stack, options, AGENT, more),
        log=home.log(AGENT),
        probe=probes.http(f"{stack.agent}/healthz"),
        after=(CONTROL_PLANE,),
        # The gateway has drained and ended before: nothing can be in flight, so there is nothing to wait for.
        signals=2,
        stop_timeout_s=AGENT_STOP_S,
    )
