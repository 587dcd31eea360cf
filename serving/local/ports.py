"""Ports of a stack: two that people know, and the rest free ones that are kept for the next start."""

from __future__ import annotations

import random
import socket
from collections.abc import Mapping

from serving.local import errors

LOOPBACK = "127.0.0.1"
GATEWAY = "gateway"
CONTROL_PLANE = "control-plane"
DEFAULTS = {GATEWAY: 8080, CONTROL_PLANE: 8090}
OPTIONS = {GATEWAY: "--port", CONTROL_PLANE: "--control-port"}

PRIVATE_RANGE = (30_001, 32_700)
"""Below the ports that the kernel gives to outgoing connections, and beside those of server processes."""


def choose(
    private: Mapping[str, int], *, asked: Mapping[str, int | None], kept: Mapping[str, int], chance: random.Random
) -> dict[str, int]:
    """Decide every port of a stack.

    Args:
        private: the ports that nobody needs to know: name → distance of another port that must be free as well, or 0.
        asked: ports of :data:`DEFAULTS` that a person named.
        kept: ports of the stack's last run; used again where they are free.

    Raises:
        PortTaken: a port that people know is taken: it is not silently another one.
    """
    ports: dict[str, int] = {}
    for name, default in DEFAULTS.items():
        port = asked.get(name) or kept.get(name) or default
        if port in ports.values():
            raise errors.PortTaken(f"port {port} is asked for twice; give {OPTIONS[name]} another one")
        if not is_free(port):
            raise errors.PortTaken(
                f"port {port} of {LOOPBACK} for the {name} is taken by another program; "
                f"stop that one, or choose a free port with {OPTIONS[name]}"
            )
        ports[name] = port
    candidates = iter(chance.sample(range(*PRIVATE_RANGE), PRIVATE_RANGE[1] - PRIVATE_RANGE[0]))
    for name, distance in private.items():
        port = kept.get(name)
        while port is None or port in ports.values() or not (is_free(port) and is_free(port + distance)):
            port = next(candidates, None)
            if port is None:
                raise errors.PortTaken(f"no port from {PRIVATE_RANGE[0]} to {PRIVATE_RANGE[1]} of {LOOPBACK} is free")
        ports[name] = port
    return ports


def is_free(port: int) -> bool:
    """Whether a server could listen on the port now. Closed connections that linger there do not count."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
            probe.listen(1)
        except OSError:
            return False
        return True
