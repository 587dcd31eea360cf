"""Wait for conditions instead of sleeping: every wait has a deadline and says what it waited for."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

POLL_S = 0.05


def wait_until(condition: Callable[[], T | None], *, timeout_s: float, what: str) -> T:
    """Poll ``condition`` until it returns something true, and return that.

    Args:
        condition: called every 50 ms; a falsy result means "not yet". Exceptions are not swallowed.
        timeout_s: seconds until giving up.
        what: names the awaited fact in the error.

    Raises:
        AssertionError: the deadline passed.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        result = condition()
        if result:
            return result
        if time.monotonic() >= deadline:
            raise AssertionError(f"waited {timeout_s} s for {what}; last seen: {result!r}")
        time.sleep(POLL_S)
