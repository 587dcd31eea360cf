"""A local stack for one benchmark: the same commands that a person types, on free ports, in a home of its own."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from pathlib import Path

import httpx

from tests.support.stack import Stack


@contextlib.contextmanager
def running(home: Path) -> Generator[Stack]:
    stack = Stack(home=home)
    try:
        stack.up()
        yield stack
    finally:
        stack.run("down", check=False, timeout_s=120)


def server_url(stack: Stack, model: str, version: int) -> str:
    """Predictions at the server process itself, past the gateway."""
    replicas = httpx.get(f"{stack.control_plane}/v1/replicas", timeout=30).raise_for_status().json()["items"]
    for replica in replicas:
        for server in replica["servers"]:
            if (server["model"], server["version"]) == (model, version) and server["rest_port"]:
                return f"http://{server['host']}:{server['rest_port']}/predictions/{model}"
    raise RuntimeError(f"no replica reports {model} version {version}: {replicas}")
