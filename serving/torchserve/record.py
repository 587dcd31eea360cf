"""A server process's identity on disk, so that an agent that was killed finds its processes again.

A pid alone names nobody: it is reused. Pid and creation time together do.
"""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
from pathlib import Path

import psutil
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from serving.torchserve.ports import Ports

FILE = "server.json"
PORTS_FILE = "ports.json"

# A process's creation time is derived from the boot time, which may drift by a clock tick between two readings.
CREATE_TIME_TOLERANCE_S = 2.0


class Record(BaseModel):
    """Who a server process is and where it listens."""

    model_config = ConfigDict(frozen=True)

    model: str
    version: int
    digest: str
    pid: int
    create_time: float
    """Seconds since the epoch, as psutil tells."""
    host: str
    ports: Ports
    workers: int
    threads: int
    root: Path
    temp: Path
    started_at: float
    """Seconds since the epoch."""


def write(record: Record) -> None:
    """Put the record into the process's folder, atomically; its ports are remembered beyond its end."""
    write_atomically(record.root / PORTS_FILE, TypeAdapter(Ports).dump_json(record.ports).decode())
    write_atomically(record.root / FILE, record.model_dump_json(indent=2))


def read(root: Path) -> Record | None:
    """The record in a folder; None when there is none, or none that can be understood."""
    try:
        return Record.model_validate_json((root / FILE).read_text())
    except (OSError, ValidationError):
        return None


def last_ports(root: Path) -> Ports | None:
    """Where the folder's process listened last, whether or not it still runs."""
    try:
        return TypeAdapter(Ports).validate_json((root / PORTS_FILE).read_bytes())
    except (OSError, ValidationError):
        return None


def forget(root: Path) -> None:
    """Remove the record: its process is gone."""
    (root / FILE).unlink(missing_ok=True)


def alive(record: Record) -> psutil.Process | None:
    """The process that the record names, if it is that very one and still runs."""
    try:
        process = psutil.Process(record.pid)
        same = abs(process.create_time() - record.create_time) <= CREATE_TIME_TOLERANCE_S
        return process if same and process.status() != psutil.STATUS_ZOMBIE else None
    except psutil.Error:
        return None


def family(record: Record) -> list[psutil.Process]:
    """Java's process and its workers, also workers that outlived it.

    Every launch is the leader of a session of its own, and the workers stay in it; a session's number is not given
    to another process while one member lives.
    """
    members: list[psutil.Process] = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            in_session = os.getsid(process.pid) == record.pid
            not_older = process.create_time() >= record.create_time - CREATE_TIME_TOLERANCE_S
            if in_session and not_older and process.status() != psutil.STATUS_ZOMBIE:
                members.append(process)
    return members


def kill(record: Record, *, number: signal.Signals = signal.SIGKILL) -> int:
    """Send a signal to the whole family; returns how many were there."""
    members = family(record)
    for process in members:
        with contextlib.suppress(psutil.Error):
            process.send_signal(number)
    return len(members)


def write_atomically(path: Path, text: str) -> None:
    """Replace a file by a new one that is complete on disk before it gets its name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
