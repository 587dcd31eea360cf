"""Parts of a stack whose supervisor was killed: found and stopped, so that the next start has a free home.

They are told by their environment, which holds the home: that works for a part that was started a moment before the
supervisor died, of which nothing could be written down. Server processes are not parts and are left alone: they serve,
and the next agent adopts them.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass

import psutil

from serving.agent import adoption
from serving.local.home import Home

HOME_VARIABLE = "SLIPWAY_STACK_HOME"
PART_VARIABLE = "SLIPWAY_STACK_PART"
SERVER_PROCESS = "org.pytorch.serve.ModelServer"

TERM_S = 10.0
"""How long a left-over part has to end by itself."""


@dataclass(frozen=True, kw_only=True)
class Leftover:
    part: str
    process: psutil.Process


def mark(home: Home, part: str) -> dict[str, str]:
    """What a part's environment must hold to be found again."""
    return {HOME_VARIABLE: str(home), PART_VARIABLE: part}


def find(home: Home) -> list[Leftover]:
    """Every part of this home that runs now."""
    return list(_find(home))


def _find(home: Home) -> Iterator[Leftover]:
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            # Parts lead a session of their own; what they start stays in it, server processes excepted.
            if os.getsid(process.pid) != process.pid:
                continue
            environment = process.environ()
            if environment.get(HOME_VARIABLE) != str(home) or PART_VARIABLE not in environment:
                continue
            if SERVER_PROCESS not in process.cmdline() and process.status() != psutil.STATUS_ZOMBIE:
                yield Leftover(part=environment[PART_VARIABLE], process=process)


def stop_parts(home: Home) -> list[str]:
    """Stop what a killed supervisor left behind; returns the names of the parts.

    The agent is killed outright: asked politely, it would stop the server processes, which are to be adopted.
    """
    found = find(home)
    for each in found:
        with contextlib.suppress(psutil.Error):
            each.process.send_signal(signal.SIGKILL if each.part == "agent" else signal.SIGTERM)
    _, alive = psutil.wait_procs([each.process for each in found], timeout=TERM_S)
    for process in alive:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(alive, timeout=TERM_S)
    return [each.part for each in found]


def stop_all(home: Home) -> list[str]:
    """Stop parts and server processes: nothing of this home is left running."""
    stopped = stop_parts(home)
    if adoption.end_all(home.agent / "servers"):
        stopped.append("server processes")
    return stopped
