"""A stack that outlives the command that started it: started, watched until it answers, stopped."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from serving.local import errors, leftovers, logfiles
from serving.local.home import Home, Stack
from serving.local.running import Message, Tell, Wishes

SUPERVISOR_LOG = "supervisor"
STOP_TIMEOUT_S = 150.0
"""The sum of the bounds on draining and on each part's end, and some more."""

KILL_S = 5.0
POLL_S = 0.1
TAIL_LINES = 5


def start(wishes: Wishes, *, tell: Tell) -> Message:
    """Start a stack in a session of its own; return its ``ready`` or ``degraded`` message.

    Raises:
        LocalError: it did not come up, and nothing is left of it.
    """
    wishes.home.create()
    log = wishes.home.log(SUPERVISOR_LOG)
    logfiles.rotate(log)
    reading, writing = os.pipe()
    command = [sys.executable, "-m", "serving.local", "--home", str(wishes.home), "--tell", str(writing)]
    for name, port in wishes.ports.items():
        command += ["--port", f"{name}={port}"] if port else []
    command += ["--answer-timeout", str(wishes.answer_timeout_s)]
    command += [] if wishes.options.with_store else ["--no-store"]
    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            env=dict(wishes.options.environment),
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=[writing],
            start_new_session=True,
        )
    os.close(writing)
    try:
        return _follow(reading, process, log, tell)
    except KeyboardInterrupt:
        process.send_signal(signal.SIGTERM)
        process.wait(STOP_TIMEOUT_S)
        raise


def _follow(reading: int, process: subprocess.Popen[bytes], log: Path, tell: Tell) -> Message:
    with os.fdopen(reading, encoding="utf-8") as lines:
        for line in lines:
            message = Message.model_validate_json(line)
            if message.kind in ("ready", "degraded"):
                return message
            if message.kind == "failed":
                process.wait(STOP_TIMEOUT_S)
                raise errors.revived(message.error, message.text, log_tail=message.log_tail)
            tell(message)
    code = process.wait(STOP_TIMEOUT_S)
    last = "; ".join(logfiles.readable(line) for line in logfiles.tail(log, TAIL_LINES))
    raise errors.LocalError(f"the supervisor ended with exit status {code}; its log is {log}: {last}")


def stop(home: Home, *, timeout_s: float = STOP_TIMEOUT_S) -> list[str]:
    """Stop the stack in a home, in order; what does not end in time is killed.

    Returns:
        Names of what had to be stopped here, because the supervisor was gone or did not do it.

    Raises:
        NotRunning: there is nothing to stop.
    """
    known = home.read()
    process = known.supervisor.process() if known and known.supervisor else None
    if process is None:
        stopped = leftovers.stop_all(home) if home.root.is_dir() else []
        if not stopped:
            raise errors.NotRunning(f"no stack runs in {home}")
        return stopped
    with contextlib.suppress(ProcessLookupError):
        os.kill(process.pid, signal.SIGTERM)
    deadline = time.monotonic() + timeout_s
    assert known is not None and known.supervisor is not None
    while known.supervisor.process() is not None:
        if time.monotonic() >= deadline:
            process.kill()
            process.wait(KILL_S)
            break
        time.sleep(POLL_S)
    try:
        with home.lock():
            return leftovers.stop_all(home)
    except errors.AlreadyRunning:
        return []  # somebody has started the next stack already: what runs now is not ours to stop


def running(home: Home) -> Stack:
    """The stack that runs in a home now.

    Raises:
        NotRunning: says what there is instead.
    """
    known = home.read()
    if known is None:
        raise errors.NotRunning(f'no stack runs in {home}; "slipway up --home {home}" starts one')
    if known.supervisor is None or known.supervisor.process() is None:
        left = ", ".join(each.part for each in leftovers.find(home))
        why = f"its supervisor was killed (still running: {left})" if left else "it is stopped"
        raise errors.NotRunning(f'no stack runs in {home}: {why}; "slipway up --home {home}" starts it again')
    return known
