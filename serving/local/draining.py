"""Ending Envoy without losing a request: clients go elsewhere, what is in flight is answered, then it may die."""

from __future__ import annotations

import asyncio
import logging
import time

import httpx

from serving.gateway import bootstrap, names
from serving.local.ports import LOOPBACK

log = logging.getLogger(__name__)

POLL_S = 0.1
IN_FLIGHT_S = 30.0
"""Bound on waiting for requests in flight."""


async def drain(admin_port: int, *, bound_s: float = IN_FLIGHT_S) -> None:
    """Return once nothing is in flight and nothing new can come, or the bound has passed.

    Envoy answers ``connection: close`` (GOAWAY) from here on and stops to listen after ``bootstrap.DRAIN_S``. Where no
    client is connected, there is nothing to wait for.
    """
    started = time.monotonic()
    async with httpx.AsyncClient(base_url=f"http://{LOOPBACK}:{admin_port}", timeout=2.0, trust_env=False) as client:
        try:
            await client.post("/healthcheck/fail")
            await client.post("/drain_listeners?graceful")
            while (elapsed := time.monotonic() - started) < bound_s:
                connections, requests = await _active(client)
                if not connections or (not requests and elapsed > bootstrap.DRAIN_S + POLL_S):
                    return
                await asyncio.sleep(POLL_S)
        except httpx.HTTPError as error:
            log.warning("the gateway could not be drained: %r", error)
            return
    log.warning("requests were still in flight after %g s", bound_s)


async def _active(client: httpx.AsyncClient) -> tuple[int, int]:
    """Connections and requests on the listener."""
    answer = await client.get("/stats", params={"filter": rf"^http\.{names.INGRESS}\.downstream_(cx|rq)_active$"})
    values = {name: int(value) for name, _, value in (line.partition(": ") for line in answer.text.splitlines())}
    prefix = f"http.{names.INGRESS}.downstream"
    return values.get(f"{prefix}_cx_active", 0), values.get(f"{prefix}_rq_active", 0)
