"""Empties a gateway before it is stopped: ``python -m serving.gateway.drain --admin-port PORT [--timeout-s S]``.

Clients are told to go elsewhere, new connections are refused at the end of the drain time, and the command returns
once nothing is in flight and nothing more can come. Only then SIGTERM, at which Envoy ends at once.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time

from serving.gateway import admin, bootstrap, errors

POLL_S = 0.05
DEFAULT_TIMEOUT_S = 30.0


async def drain(*, admin_port: int, timeout_s: float = DEFAULT_TIMEOUT_S) -> int:
    """Begin to drain and wait for the requests in flight; returns how many are left (0 unless time ran out).

    Raises:
        EnvoyUnreachable: there is nothing to drain.
    """
    envoy = admin.Admin(port=admin_port)
    try:
        await envoy.begin_drain()
        started = time.monotonic()
        while True:
            connections, requests = await envoy.load()
            elapsed = time.monotonic() - started
            is_closed = connections == 0 or elapsed > bootstrap.DRAIN_S + POLL_S
            if (requests == 0 and is_closed) or elapsed >= timeout_s:
                return requests
            await asyncio.sleep(POLL_S)
    finally:
        await envoy.close()


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m serving.gateway.drain", description="Empty a gateway before it is stopped."
    )
    parser.add_argument("--admin-port", type=int, required=True)
    parser.add_argument("--timeout-s", type=float, default=DEFAULT_TIMEOUT_S, help="seconds to wait for requests")
    arguments = parser.parse_args()
    try:
        left = asyncio.run(drain(admin_port=arguments.admin_port, timeout_s=arguments.timeout_s))
    except errors.EnvoyUnreachable:
        return 0
    return 0 if left == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
