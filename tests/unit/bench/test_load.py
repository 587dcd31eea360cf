"""The load generator against a server of a few lines: it counts whole answers, and refuses to measure errors."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from bench import load


@contextmanager
def answering(*pieces: bytes) -> Iterator[str]:
    """A server that answers every request with these pieces, one write each."""

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            while self.rfile.readline():
                length = 0
                while line := self.rfile.readline().strip():
                    name, _, value = line.partition(b":")
                    if name.lower() == b"content-length":
                        length = int(value)
                self.rfile.read(length)
                for piece in pieces:
                    self.wfile.write(piece)
                    self.wfile.flush()

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True

    with Server(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/predictions/noop"
        server.shutdown()


def test_answers_that_come_in_pieces_count_once() -> None:
    with answering(b"HTTP/1.1 200 OK\r\nContent-", b"Length: 5\r\n\r\nhe", b"llo") as url:
        figures = load.drive(url, body=b"x", connections=2, seconds=0.2)
    assert figures["requests_per_s"] > 0
    assert figures["p50_ms"] <= figures["p99_ms"]


def test_an_answer_other_than_200_ends_the_measurement() -> None:
    with (
        answering(b"HTTP/1.1 503 No\r\ncontent-length: 0\r\n\r\n") as url,
        pytest.raises(load.LoadFailed, match="503"),
    ):
        load.drive(url, body=b"x", connections=1, seconds=5)
