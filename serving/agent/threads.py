"""Blocking work that must not hold up the agent's end.

``asyncio.to_thread`` shares a handful of threads and is waited for at exit: a download of many gigabytes would starve
the watches, and delay a SIGTERM until it is complete. What is downloaded so far is resumed by the next agent.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable


async def run_abandonable(work: Callable[[], None], *, name: str) -> None:
    """Run ``work`` in a thread of its own that ends with the process.

    Raises:
        Exception: whatever ``work`` raises.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def settle(error: BaseException | None) -> None:
        if done.done():
            return
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)

    def body() -> None:
        problem: BaseException | None = None
        try:
            work()
        except BaseException as error:
            problem = error
        # The loop may be closed by now: nobody waits any more.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(settle, problem)

    threading.Thread(target=body, name=name, daemon=True).start()
    await done
