"""The folder that holds a stack: where each part keeps its state, who works in it, and how to reach it.

``stack.json`` is written by the supervisor alone, on every change, and readable by its owner alone: it holds the
store's credentials. It survives the stack, so that the next start finds the same ports and credentials again.
"""

from __future__ import annotations

import os
from datetime import datetime
from enum import StrEnum
from pathlib import Path

import filelock
import psutil
from pydantic import BaseModel, ConfigDict, ValidationError

from model_store import settings as store_settings
from serving.local import errors
from serving.torchserve import record

DEFAULT = Path("~/.slipway")
STACK_FILE = "stack.json"
LOCK_FILE = "stack.lock"


class PartState(StrEnum):
    WAITING = "waiting"
    """For the parts that it needs."""
    STARTING = "starting"
    READY = "ready"
    RESTARTING = "restarting"
    CRASH_LOOPING = "crash-looping"
    STOPPING = "stopping"
    STOPPED = "stopped"


class StackState(StrEnum):
    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"
    STOPPED = "stopped"


class _Document(BaseModel):
    model_config = ConfigDict(extra="ignore")


class Part(_Document):
    name: str
    state: PartState = PartState.WAITING
    pid: int | None = None
    since: datetime | None = None
    restarts: int = 0
    error: str | None = None


class Store(_Document):
    url: str
    endpoint: str | None = None
    region: str | None = None
    access_key: str | None = None
    secret_key: str | None = None

    def settings(self) -> store_settings.Settings:
        """How to talk to it."""
        return store_settings.Settings.from_url(
            self.url,
            endpoint=self.endpoint,
            region=self.region,
            addressing="path" if self.access_key else "auto",
            access_key=self.access_key,
            secret_key=self.secret_key,
        )


class Supervisor(_Document):
    """A pid alone names nobody, since it is reused; pid and creation time together do."""

    pid: int
    create_time: float

    @classmethod
    def this(cls) -> Supervisor:
        return cls(pid=os.getpid(), create_time=psutil.Process().create_time())

    def process(self) -> psutil.Process | None:
        """The process, if it is that very one and still runs."""
        try:
            process = psutil.Process(self.pid)
            same = abs(process.create_time() - self.create_time) <= record.CREATE_TIME_TOLERANCE_S
            return process if same and process.status() != psutil.STATUS_ZOMBIE else None
        except psutil.Error:
            return None


class Stack(_Document):
    """``stack.json``."""

    gateway: str
    control_plane: str
    agent: str
    store: Store
    ports: dict[str, int]
    state: StackState = StackState.STARTING
    supervisor: Supervisor | None = None
    started_at: datetime | None = None
    parts: list[Part] = []


class Home:
    """The layout. Making one touches no disk."""

    def __init__(self, root: Path) -> None:
        self.root = root.expanduser().resolve()

    def __str__(self) -> str:
        return str(self.root)

    @property
    def stack_file(self) -> Path:
        return self.root / STACK_FILE

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def store(self) -> Path:
        return self.root / "store"

    @property
    def gateway(self) -> Path:
        return self.root / "gateway"

    @property
    def agent(self) -> Path:
        return self.root / "agent"

    @property
    def database_url(self) -> str:
        return f"sqlite:///{self.root / 'control-plane' / 'control.db'}"

    def log(self, part: str) -> Path:
        return self.logs / f"{part}.log"

    def create(self) -> None:
        """Make the folders.

        Raises:
            HomeUnusable: says why.
        """
        try:
            for folder in (self.root, self.logs, self.store, self.gateway, self.agent, self.root / "control-plane"):
                folder.mkdir(parents=True, exist_ok=True)
            self.root.chmod(0o700)
        except OSError as error:
            raise unusable(self, error) from error

    def read(self) -> Stack | None:
        """The stack as last written; ``None`` where there never was one."""
        try:
            return Stack.model_validate_json(self.stack_file.read_bytes())
        except (OSError, ValidationError):
            return None

    def write(self, stack: Stack) -> None:
        record.write_atomically(self.stack_file, stack.model_dump_json(indent=1) + "\n")

    def lock(self) -> filelock.BaseFileLock:
        """Take the home for this process; the kernel gives it back when the process ends, however it ends.

        Raises:
            AlreadyRunning: names the home and the process that has it.
        """
        lock = filelock.FileLock(self.root / LOCK_FILE)
        try:
            lock.acquire(timeout=0)
        except filelock.Timeout as error:
            raise errors.AlreadyRunning(
                f'a stack already runs in {self} ({self._holder()}); "slipway down --home {self}" stops it, '
                "another --home runs a second one beside it"
            ) from error
        return lock

    def is_locked(self) -> bool:
        """Whether a supervisor works in this home now."""
        if not (self.root / LOCK_FILE).exists():
            return False
        try:
            self.lock().release()
        except errors.AlreadyRunning:
            return True
        return False

    def _holder(self) -> str:
        known = self.read()
        process = known.supervisor.process() if known and known.supervisor else None
        return f"pid {process.pid}" if process else "it has just started"


def unusable(home: Home, error: OSError) -> errors.HomeUnusable:
    return errors.HomeUnusable(
        f"cannot write to the home {home}: {error.strerror or error}; "
        "make room or rights there, or choose another --home"
    )
