"""A stack in this terminal: started, watched, stopped by Ctrl-C; and what both ways of starting have in common."""

from __future__ import annotations

import contextlib
import logging
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from model_store import spec
from serving import logs
from serving.cli import errors, output
from serving.cli.client import ControlPlane
from serving.local import background, logfiles
from serving.local import errors as local_errors
from serving.local.home import Home, PartState, Stack
from serving.local.running import Message, Running, Wishes

Say = Callable[[str], None]

POLL_S = 0.2


def run(wishes: Wishes, *, examples: Sequence[Path]) -> None:
    """Run a stack until Ctrl-C or SIGTERM.

    Raises:
        LocalError: it did not come up; nothing is left running.
    """
    wishes.home.create()
    _log_to(wishes.home.log(background.SUPERVISOR_LOG))
    with contextlib.ExitStack() as stack:
        screen = _Screen(wishes.home, stack.enter_context(output.status("starting")), examples)
        try:
            Running(wishes, tell=screen.tell).run()
        except local_errors.Interrupted:
            raise KeyboardInterrupt from None
        finally:
            screen.close()
    output.note("stopped")


class _Screen:
    """Shows progress; once the stack answers, publishes the examples and tells how to reach it."""

    def __init__(self, home: Home, status: output.Status, examples: Sequence[Path]) -> None:
        self._home = home
        self._status = status
        self._progress = Progress(status)
        self._examples = examples
        self._is_up = False
        self._closed = threading.Event()

    def tell(self, message: Message) -> None:
        if message.kind in ("ready", "degraded"):
            self._is_up = True
            if message.kind == "degraded":
                self._status.note(f"slipway: {degraded(self._home, message)}")
            assert message.stack is not None
            threading.Thread(target=self._greet, args=(message.stack,), daemon=True).start()
        elif self._is_up and message.part is not None:
            trouble(self._status, message)
        else:
            self._progress.tell(message)

    def close(self) -> None:
        self._closed.set()

    def _greet(self, stack: Stack) -> None:
        try:
            publish_examples(self._home, stack, self._examples, say=self._status.note, given_up=self._closed)
        except errors.CliError as error:
            if not self._closed.is_set():
                self._status.note(f"{error.details}\nslipway: {error}".strip())
        if not self._closed.is_set():
            self._status.note(addresses(stack))
            self._status.update("running; Ctrl-C stops it")


class Progress:
    """Tells of a start what is news."""

    def __init__(self, status: output.Status) -> None:
        self._status = status
        self._states: dict[str, PartState] = {}

    def tell(self, message: Message) -> None:
        part = message.part
        if message.kind == "waiting":
            self._status.update(message.text)
        if part is None or self._states.get(part.name) is part.state:
            return
        self._states[part.name] = part.state
        if part.state in (PartState.RESTARTING, PartState.CRASH_LOOPING):
            self._status.note(f"{part.name}: {part.error}")
        elif part.state is not PartState.STOPPED:
            self._status.update(f"{part.name} is {part.state}")


def trouble(status: output.Status, message: Message) -> None:
    """What happens to a part while the stack runs."""
    part = message.part
    assert part is not None
    if part.state in (PartState.RESTARTING, PartState.CRASH_LOOPING) or (part.state is PartState.READY):
        status.note(f"{part.name}: {part.state}" + (f": {part.error}" if part.error else ""))
    elif part.state is PartState.STOPPING:
        status.update(f"stopping {part.name}")


def degraded(home: Home, message: Message) -> str:
    return (
        f"the stack in {home} runs, but not all that was promoted answers: {message.text}; promote another version, "
        f'or stop it with "slipway down"'
    )


def addresses(stack: Stack) -> str:
    return f"gateway {stack.gateway}   control plane {stack.control_plane}/docs"


def publish_examples(
    home: Home, stack: Stack, files: Sequence[Path], *, say: Say, given_up: threading.Event | None = None
) -> None:
    """Publish and promote what is new of some model files, and say how to ask it.

    Args:
        given_up: set by another thread when the stack is stopping.

    Raises:
        CliError: one could not be published.
    """
    control = ControlPlane(stack.control_plane)
    models = {file: spec.load(file)[0] for file in files}
    for file, model in models.items():
        if not _is_served(control, model.name):
            say(f"publishing {model.name}")
            _apply(home, file, given_up or threading.Event())
    asked = [curl(stack.gateway, model) for model in models.values() if model.golden]
    if asked:
        say("\n".join(("", "ask them in another terminal:", *asked, "")))


def _is_served(control: ControlPlane, model: str) -> bool:
    """A first run that was interrupted between pushing and promoting is made good by the next."""
    try:
        return control.get(f"/v1/models/{model}")["stages"].get("production") is not None
    except errors.NotFound:
        return False


def curl(gateway: str, model: spec.Spec) -> str:
    """A line that asks a model its first golden input."""
    first = model.golden[0]
    path = model.files[first.file]
    with contextlib.suppress(ValueError):
        path = path.relative_to(Path.cwd())
    where = f"{gateway}/predictions/{model.name}"
    return f"curl -s {where} -H 'content-type: {first.content_type}' --data-binary @{path}"


def _apply(home: Home, file: Path, given_up: threading.Event) -> None:
    """In a process of its own, away from Ctrl-C: the stack that it talks to is stopped by that in its own order."""
    command = [sys.executable, "-m", "serving.cli.main", "apply", "-f", str(file), "--home", str(home)]
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=said, start_new_session=True
        )
        while process.poll() is None:
            if given_up.wait(POLL_S):
                process.terminate()
                process.wait()
        if process.returncode != 0:
            said.seek(0)
            *details, last = (said.read().strip() or f"exit status {process.returncode}").splitlines()
            raise errors.CliError(last.removeprefix("slipway: "), details="\n".join(details))


def _log_to(file: Path) -> None:
    """The supervisor's own log: the terminal has the same in fewer words."""
    logfiles.rotate(file)
    handler = logging.FileHandler(file)
    handler.setFormatter(logs.JsonFormatter(part="supervisor"))
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    logging.getLogger("httpx").setLevel(logging.WARNING)
