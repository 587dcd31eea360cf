"""A TorchServe handler that does nothing: both sides of the benchmark run this very file."""

from __future__ import annotations


def handle(data: list[object] | None, context: object) -> list[bytes]:
    return [b"ok"] * len(data or [])
