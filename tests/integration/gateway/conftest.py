from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support import gateway


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def envoy() -> AsyncIterator[gateway.Gateway]:
    """A real Envoy without a configuration."""
    async with gateway.running_gateway() as running:
        yield running


@pytest.fixture
async def one() -> AsyncIterator[gateway.Upstream]:
    """A server process of version 1."""
    async with gateway.running_upstream(1) as upstream:
        yield upstream


@pytest.fixture
async def two() -> AsyncIterator[gateway.Upstream]:
    """A server process of version 2."""
    async with gateway.running_upstream(2) as upstream:
        yield upstream
