"""A whole local stack under test, driven through the same commands that a person types."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
SLIPWAY = str(Path(sys.executable).parent / "slipway")


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class CommandFailed(AssertionError):
    """A ``slipway`` command exited non-zero; carries what it said."""

    def __init__(self, arguments: tuple[str, ...], result: subprocess.CompletedProcess[str]) -> None:
        super().__init__(
            f"slipway {' '.join(arguments)} exited {result.returncode}\n--- stdout\n{result.stdout}"
            f"\n--- stderr\n{result.stderr}"
        )
        self.returncode = result.returncode
        self.stdout = result.stdout
        self.stderr = result.stderr


class Stack:
    """One home, two ports, and the command line to work on them."""

    def __init__(self, *, home: Path) -> None:
        self.home = home
        self._pushed: dict[Path | str, dict[str, Any]] = {}
        self.port = free_port()
        self.control_port = free_port()
        self.gateway = f"http://127.0.0.1:{self.port}"
        self.control_plane = f"http://127.0.0.1:{self.control_port}"

    def run(
        self, *arguments: str, timeout_s: float = 240, check: bool = True, environment: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run ``slipway ARGUMENTS --home HOME``.

        Raises:
            CommandFailed: it exited non-zero, and ``check`` is set.
        """
        result = subprocess.run(
            [SLIPWAY, *arguments, "--home", str(self.home)],
            capture_output=True,
            text=True,
            timeout=timeout_s,
            cwd=REPOSITORY,
            check=False,
            env=os.environ | (environment or {}),
        )
        if check and result.returncode != 0:
            raise CommandFailed(arguments, result)
        return result

    def json(self, *arguments: str, timeout_s: float = 240) -> Any:
        """Run a command with ``--output json`` and decode what it printed."""
        return json.loads(self.run(*arguments, "--output", "json", timeout_s=timeout_s).stdout)

    def up(self) -> None:
        self.run("up", "-d", "--port", str(self.port), "--control-port", str(self.control_port), timeout_s=120)

    def down(self) -> None:
        self.run("down", timeout_s=120)

    def parts(self) -> dict[str, dict[str, Any]]:
        """Name → part, as ``slipway status`` tells."""
        return {part["name"]: part for part in self.json("status")["parts"]}

    def push(self, file: Path | str, *, replay: bool = True) -> dict[str, Any]:
        """Push a model.yaml; the same one is pushed once only, as its replay takes seconds."""
        if file not in self._pushed:
            self._pushed[file] = self.push_again(file, replay=replay)
        return self._pushed[file]

    def push_again(self, file: Path | str, *, replay: bool = True) -> dict[str, Any]:
        return self.json("push", str(file), *([] if replay else ["--no-replay"]))

    def promote(self, model: str, version: int, *, stage: str = "production") -> dict[str, Any]:
        return self.json("promote", model, str(version), "--to", stage, "--wait")
