"""Stand-in parts: tiny programs with the manners of real ones."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from serving.local import leftovers, probes
from serving.local.home import Home
from serving.local.parts import Part

SERVER = """
import http.server, os, signal, sys, time
log = open(os.environ["STORY"], "a", buffering=1)
def end(*_):
    log.write(f"{NAME} ends\\n")
    os._exit(0)
NAME, port, manners = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
if "dies" in manners:
    print("cannot go on: no reason", flush=True)
    sys.exit(7)
if "never-ready" in manners:
    time.sleep(600)
signal.signal(signal.SIGTERM, signal.SIG_IGN if "stubborn" in manners else end)
server = http.server.ThreadingHTTPServer(("127.0.0.1", port), http.server.SimpleHTTPRequestHandler)
log.write(f"{NAME} starts\\n")
print(NAME, "serves", flush=True)
server.serve_forever()
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


MakePart = Callable[..., Part]


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    home = Home(tmp_path / "home")
    home.create()
    (home.root / "www").mkdir()
    yield home
    leftovers.stop_all(home)


@pytest.fixture
def story(tmp_path: Path) -> Path:
    """What the stand-ins write down, in order."""
    path = tmp_path / "story"
    path.touch()
    return path


@pytest.fixture
def make_part(home: Home, story: Path) -> MakePart:
    def make(name: str, *manners: str, **fields: object) -> Part:
        port = free_port()
        environment = os.environ | leftovers.mark(home, name) | {"STORY": str(story)}
        given: dict[str, object] = {
            "name": name,
            "command": (sys.executable, "-c", SERVER, name, str(port), *manners),
            "environment": environment,
            "log": home.log(name),
            "probe": probes.http(f"http://127.0.0.1:{port}/"),
            "stop_timeout_s": 1.0,
        }
        return Part(**(given | fields))  # pyright: ignore[reportArgumentType]

    return make


def alive(pid: int | None) -> bool:
    return pid is not None and psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
