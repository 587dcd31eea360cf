"""Private ports for a server process.

They lie below the range from which the kernel takes the ports of outgoing connections: otherwise a connection could
take a port between our looking and Java's binding.
"""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from dataclasses import dataclass

from serving.torchserve import errors

LOOPBACK = "127.0.0.1"
DEFAULT_RANGE = (20_000, 30_000)


@dataclass(frozen=True, kw_only=True)
class Ports:
    """The sockets of one server process. Only ``rest`` and ``grpc`` may be reachable from outside the replica."""

    rest: int
    grpc: int
    management: int
    metrics: int
    grpc_management: int


def pick(
    *,
    host: str,
    span: tuple[int, int] = DEFAULT_RANGE,
    chance: random.Random | None = None,
    preferred: Ports | None = None,
) -> Ports:
    """Choose ports that nobody listens on now.

    Args:
        host: address that the inference ports will be bound to; the others are bound to loopback.
        span: first and last port to choose from.
        chance: source of randomness; two agents of one machine should not try the same ports in the same order.
        preferred: where this version listened before. Gateways still send there: while the control plane is away
            nobody can tell them of another address.

    Raises:
        NoFreePort: fewer than five ports of the range are free.
    """
    if preferred is not None and _are_free(preferred, host):
        return preferred
    free = _free(host, span, chance or random.Random())
    try:
        return Ports(
            rest=next(free), grpc=next(free), management=next(free), metrics=next(free), grpc_management=next(free)
        )
    except StopIteration:
        raise errors.NoFreePort(
            f"fewer than five free ports between {span[0]} and {span[1]} on {host}; widen SLIPWAY_PORT_RANGE"
        ) from None


def _free(host: str, span: tuple[int, int], chance: random.Random) -> Iterator[int]:
    candidates = list(range(span[0], span[1] + 1))
    chance.shuffle(candidates)
    return (port for port in candidates if all(_can_bind(address, port) for address in {host, LOOPBACK}))


def _are_free(ports: Ports, host: str) -> bool:
    public = all(_can_bind(host, port) for port in (ports.rest, ports.grpc))
    return public and all(
        _can_bind(LOOPBACK, port) for port in (ports.management, ports.metrics, ports.grpc_management)
    )


def _can_bind(host: str, port: int) -> bool:
    with socket.socket() as probe:
        # As Java does: connections of the process before, still waiting out their time, do not hold the port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
        return True
