"""A TCP proxy that misbehaves on demand: cuts, stalls or refuses connections to a server that is well."""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading
from collections.abc import Generator
from typing import Literal

Mode = Literal["pass", "cut", "stall", "refuse"]
BUFFER_BYTES = 64 * 1024
TICK_S = 0.05


class FaultyProxy:
    """Forwards 127.0.0.1:``port`` to 127.0.0.1:``target``.

    * ``cut``: open connections are reset, new ones pass.
    * ``stall``: connections stay open, nothing moves.
    * ``refuse``: open connections are reset, new ones are reset at once.
    """

    def __init__(self, *, target: int) -> None:
        self._target = target
        self._lock = threading.Lock()
        self._mode: Mode = "pass"
        self._cuts = 0  # a connection opened before the latest cut ends
        self._budget: int | None = None
        self._then: Mode = "pass"
        self._closing = threading.Event()
        self.forwarded_bytes = 0
        self.connections = 0
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self._listener.settimeout(TICK_S)
        self.port = int(self._listener.getsockname()[1])
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def set(self, mode: Mode) -> None:
        """Misbehave (or behave) from now on."""
        with self._lock:
            self._switch(mode)
            self._budget = None

    def after(self, count: int, then: Mode) -> None:
        """Let ``count`` more bytes pass, both directions together, then misbehave."""
        with self._lock:
            self._budget, self._then = count, then

    def close(self) -> None:
        self._closing.set()
        for thread in self._threads:
            thread.join()
        self._listener.close()

    def _switch(self, mode: Mode) -> None:
        self._mode = mode
        if mode in ("cut", "refuse"):
            self._cuts += 1
        if mode == "cut":
            self._mode = "pass"

    def _accept(self) -> None:
        while not self._closing.is_set():
            try:
                client, _ = self._listener.accept()
            except TimeoutError:
                continue
            with self._lock:
                mode, cuts = self._mode, self._cuts
                self.connections += 1
            if mode == "refuse":
                _reset(client)
                continue
            thread = threading.Thread(target=self._serve, args=(client, cuts), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, client: socket.socket, cuts: int) -> None:
        server = socket.socket()
        try:
            server.connect(("127.0.0.1", self._target))
            while not self._closing.is_set():
                readable, _, _ = select.select([client, server], [], [], TICK_S)
                with self._lock:
                    if self._cuts != cuts:
                        return
                    stalled = self._mode == "stall"
                if stalled:
                    self._closing.wait(TICK_S)
                    continue
                for source in readable:
                    data = source.recv(BUFFER_BYTES)
                    if not data:
                        return
                    allowed = self._spend(len(data))
                    (server if source is client else client).sendall(data[:allowed])
                    if allowed < len(data):
                        break  # the fault has begun: the loop's head carries it out
        except OSError:
            pass
        finally:
            _reset(client)
            server.close()

    def _spend(self, count: int) -> int:
        with self._lock:
            if self._budget is None:
                self.forwarded_bytes += count
                return count
            allowed = min(count, self._budget)
            self._budget -= allowed
            self.forwarded_bytes += allowed
            if self._budget == 0:
                self._budget = None
                self._switch(self._then)
            return allowed


def _reset(connection: socket.socket) -> None:
    """Close with RST, as a machine that went away would."""
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


@contextlib.contextmanager
def proxying(target: int) -> Generator[FaultyProxy]:
    proxy = FaultyProxy(target=target)
    try:
        yield proxy
    finally:
        proxy.close()
