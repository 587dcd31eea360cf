"""How a part proves that it is ready: a probe returns ``None``, or says what is still missing."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable

import httpx

from model_store import errors as store_errors
from model_store import settings as store_settings
from model_store import store
from serving.local.ports import LOOPBACK

Probe = Callable[[], Awaitable[str | None]]

TIMEOUT_S = 2.0


def http(url: str) -> Probe:
    """Ready when a GET answers 200."""

    async def probe() -> str | None:
        try:
            async with httpx.AsyncClient(trust_env=False, timeout=TIMEOUT_S) as client:
                answer = await client.get(url)
        except httpx.HTTPError as error:
            return f"{url} does not answer ({type(error).__name__})"
        return None if answer.status_code == 200 else f"{url} answers {answer.status_code}: {answer.text[:300]}"

    return probe


def port(number: int) -> Probe:
    """Ready when the port takes connections."""

    async def probe() -> str | None:
        try:
            _, writer = await asyncio.wait_for(asyncio.open_connection(LOOPBACK, number), TIMEOUT_S)
        except (OSError, TimeoutError):
            return f"port {number} takes no connections"
        writer.close()
        return None

    return probe


def bucket(where: store_settings.Settings, *, s3_port: int) -> Probe:
    """Ready when the bucket is there; it is created on the way."""
    connects = port(s3_port)
    patient_once = dataclasses.replace(where, attempts=1, connect_timeout_s=TIMEOUT_S, read_timeout_s=TIMEOUT_S)

    async def probe() -> str | None:
        # boto3 needs half a second to be imported and to fail; a connection tells sooner.
        if missing := await connects():
            return missing
        try:
            await asyncio.to_thread(store.Store(patient_once).ensure_bucket)
        except store_errors.ModelStoreError as error:
            return str(error)
        return None

    return probe
