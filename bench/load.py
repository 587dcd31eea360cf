"""A closed-loop HTTP load generator that costs little: keep-alive sockets, one epoll loop, hardly any parsing.

``python -m bench.load URL`` prints one JSON line. It runs in a process of its own, so that its work is not mixed with
the benchmark's.
"""

from __future__ import annotations

import argparse
import json
import select
import socket
import statistics
import sys
import time
from dataclasses import dataclass
from urllib.parse import urlsplit

HEADER_END = b"\r\n\r\n"
LENGTH = b"content-length:"
RECEIVE_BYTES = 65536
SILENCE_S = 30
"""No answer on any connection for this long: the server hangs, and so must not we."""


class LoadFailed(RuntimeError):
    """The server closed, hung, or answered other than 200."""


@dataclass(slots=True)
class Connection:
    socket: socket.socket
    sent_at: float = 0.0
    received: bytes = b""


def drive(url: str, *, body: bytes, connections: int, seconds: float) -> dict[str, float]:
    """Keep one request under way on each connection for ``seconds``.

    Returns:
        ``requests_per_s``, and ``p50_ms`` and ``p99_ms`` of the time from sending to the whole answer.

    Raises:
        LoadFailed: one answer was not 200; a benchmark of errors would be worth nothing.
    """
    target = urlsplit(url)
    host, port = target.hostname or "127.0.0.1", target.port or 80
    request = (
        f"POST {target.path} HTTP/1.1\r\nhost: {host}:{port}\r\ncontent-type: application/octet-stream\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    ).encode() + body
    poll = select.epoll()
    open_connections: dict[int, Connection] = {}
    latencies: list[float] = []
    try:
        for _ in range(connections):
            each = socket.create_connection((host, port), timeout=SILENCE_S)
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            open_connections[each.fileno()] = Connection(each)
            poll.register(each.fileno(), select.EPOLLIN)
        started = time.perf_counter()
        for connection in open_connections.values():
            connection.sent_at = time.perf_counter()
            connection.socket.sendall(request)
        while (now := time.perf_counter()) - started < seconds:
            ready = poll.poll(SILENCE_S)
            if not ready:
                raise LoadFailed(f"{url}: no answer for {SILENCE_S} s")
            for number, _ in ready:
                connection = open_connections[number]
                if _answered(connection, url):
                    now = time.perf_counter()
                    latencies.append(now - connection.sent_at)
                    connection.sent_at = now
                    connection.socket.sendall(request)
        elapsed = time.perf_counter() - started
    finally:
        for connection in open_connections.values():
            connection.socket.close()
        poll.close()
    cuts = statistics.quantiles(latencies, n=100)
    return {"requests_per_s": len(latencies) / elapsed, "p50_ms": cuts[49] * 1e3, "p99_ms": cuts[98] * 1e3}


def _answered(connection: Connection, url: str) -> bool:
    """Read what has come; true once the answer is whole."""
    chunk = connection.socket.recv(RECEIVE_BYTES)
    if not chunk:
        raise LoadFailed(f"{url}: the server closed the connection")
    data = connection.received + chunk
    end = data.find(HEADER_END)
    if end >= 0:
        head = data[:end].lower()
        at = head.find(LENGTH)
        if not head.startswith(b"http/1.1 200") or at < 0:
            raise LoadFailed(f"{url}: expected 200 with a content-length, got {data[:500]!r}")
        if len(data) >= end + len(HEADER_END) + int(head[at + len(LENGTH) :].split(b"\r\n", 1)[0]):
            connection.received = b""
            return True
    connection.received = data
    return False


def main() -> int:
    parser = argparse.ArgumentParser(description="Send POST requests as fast as they are answered.")
    parser.add_argument("url")
    parser.add_argument("--body", default="x")
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=5)
    given = parser.parse_args()
    try:
        figures = drive(given.url, body=given.body.encode(), connections=given.connections, seconds=given.seconds)
    except (LoadFailed, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    print(json.dumps(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
