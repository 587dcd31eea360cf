from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from serving.torchserve import launch, ports, record
from tests.support import waiting

SLEEPER = "import subprocess, sys, time; c = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']); \
print(c.pid, flush=True); time.sleep(60)"


@pytest.fixture
def family() -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A process with a child, in a session of their own; and the child's pid."""
    process = subprocess.Popen(
        [sys.executable, "-c", SLEEPER], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    child = int(process.stdout.readline())
    yield process, child
    process.kill()
    process.wait()
    process.stdout.close()
    if psutil.pid_exists(child):
        psutil.Process(child).kill()


def identity(tmp_path: Path, pid: int, **changes: float) -> record.Record:
    values = {
        "model": "m",
        "version": 1,
        "digest": "0" * 64,
        "pid": pid,
        "create_time": psutil.Process(pid).create_time(),
        "host": "127.0.0.1",
        "ports": ports.Ports(rest=1, grpc=2, management=3, metrics=4, grpc_management=5),
        "workers": 1,
        "threads": 1,
        "root": tmp_path,
        "temp": tmp_path / "tmp",
        "started_at": 0.0,
    }
    return record.Record.model_validate(values | changes)


def test_a_record_survives_the_disk(tmp_path: Path, family: tuple[subprocess.Popen[str], int]) -> None:
    written = identity(tmp_path, family[0].pid)
    record.write(written)
    assert record.read(tmp_path) == written
    record.forget(tmp_path)
    assert record.read(tmp_path) is None
    assert record.last_ports(tmp_path) == written.ports, "the next process listens where gateways still send"


def test_a_damaged_record_is_no_record(tmp_path: Path) -> None:
    (tmp_path / record.FILE).write_text("{")
    assert record.read(tmp_path) is None


def test_a_pid_that_was_given_to_somebody_else_is_not_alive(
    tmp_path: Path, family: tuple[subprocess.Popen[str], int]
) -> None:
    true = identity(tmp_path, family[0].pid)
    assert record.alive(true)
    assert record.alive(identity(tmp_path, family[0].pid, create_time=true.create_time - 100)) is None


def test_workers_that_outlive_java_are_found_and_ended(
    tmp_path: Path, family: tuple[subprocess.Popen[str], int]
) -> None:
    java, worker = family
    process = launch.Process(identity(tmp_path, java.pid), None)
    java.kill()
    java.wait()

    assert process.exit_reason() is not None
    assert not process.gone()
    assert process.kill() == 1
    waiting.wait_until(process.gone, timeout_s=5, what="the worker to be gone")
    assert not psutil.pid_exists(worker) or psutil.Process(worker).status() == psutil.STATUS_ZOMBIE


def test_an_interrupted_write_leaves_the_old_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    record.write_atomically(path, "old")

    def full(_: Path, __: Path) -> Path:
        raise OSError("disk full")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="disk full"):
        record.write_atomically(path, "new")
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]
