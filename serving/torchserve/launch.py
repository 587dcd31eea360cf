"""Starting and stopping one server process."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from model_store import manifest
from serving.torchserve import config, errors, record
from serving.torchserve.config import Fit, Layout
from serving.torchserve.installation import Installation
from serving.torchserve.ports import Ports

MODEL_CONFIG_FILE = "model-config.yaml"

# A Unix socket's path holds at most 107 characters; TorchServe appends "/.ts.sock.65535".
SOCKET_FOLDER_CHARACTERS = 85


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All that a launch depends on, decided before anything is written."""

    model: str
    version: int
    pool: str
    manifest: manifest.Manifest
    fitted: Fit
    ports: Ports
    host: str
    """Address that the inference ports are bound to."""
    cores: int
    gpus: int
    root: Path
    """The process's folder; ``root/model`` holds the verified, unpacked copy of the archive."""

    @property
    def device(self) -> str:
        wanted = self.manifest.serving.device
        if wanted == "auto":
            return "gpu" if self.gpus else "cpu"
        return wanted


class Process:
    """A server process that this agent, or one before it, has started."""

    def __init__(self, identity: record.Record, child: subprocess.Popen[bytes] | None = None) -> None:
        self.identity = identity
        self._child = child

    @property
    def layout(self) -> Layout:
        return Layout(root=self.identity.root, temp=self.identity.temp)

    def exit_reason(self) -> str | None:
        """Why it is gone; None while it runs. Reaps it when it is our own child."""
        if self._child is not None:
            code = self._child.poll()
            if code is not None:
                return _describe_exit(code)
        return None if record.alive(self.identity) else "exited; its code is unknown, as another agent started it"

    def terminate(self) -> None:
        """Ask Java to exit. It resets its connections at once: nothing may be routed here any more."""
        process = record.alive(self.identity)
        if process is not None:
            with contextlib.suppress(psutil.Error):
                process.terminate()

    def kill(self) -> int:
        """End Java and every worker, also those that outlived it; returns how many were there."""
        count = record.kill(self.identity)
        if self._child is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(timeout=5)
        return count

    def gone(self) -> bool:
        """Whether nobody of the family is left."""
        return self.exit_reason() is not None and not record.family(self.identity)

    def clean(self) -> None:
        """Remove what must not outlive the process: its record and its temporary folder."""
        record.forget(self.identity.root)
        shutil.rmtree(self.identity.temp, ignore_errors=True)

    def memory_bytes(self) -> int:
        """Resident memory of Java and its workers; pages that they share count once for each."""
        total = 0
        for process in record.family(self.identity):
            with contextlib.suppress(psutil.Error):
                total += process.memory_info().rss
        return total

    def worker_pids(self) -> set[int]:
        """Pids of the workers that live now; what a handler forks is not among them."""
        found: set[int] = set()
        for process in record.family(self.identity):
            with contextlib.suppress(psutil.Error):
                ours = process.ppid() == self.identity.pid
                if ours and any("model_service_worker" in part for part in process.cmdline()):
                    found.add(process.pid)
        return found


def start(plan: Plan, installation: Installation) -> Process:
    """Write the configuration into the private copy and start Java.

    Raises:
        LaunchFailed: the folder cannot be written, or the system refused to start the process.
        InvalidSetting: TorchServe would misread a value.
    """
    if plan.device == "gpu" and not plan.gpus:
        raise errors.InvalidSetting(
            f"version {plan.version} of {plan.model} needs a GPU and this replica has none; "
            "assign it to a pool with GPUs"
        )
    try:
        layout = Layout(root=plan.root, temp=_temp(plan.root))
        _write(plan, layout)
        argv = config.command(installation=installation, layout=layout, serving=plan.manifest.serving)
        with layout.output.open("ab") as output:
            child = subprocess.Popen(
                argv,
                cwd=layout.root,
                env=config.environment(os.environ, layout=layout, fitted=plan.fitted),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
    except OSError as error:
        raise errors.LaunchFailed(f"cannot start {plan.model} version {plan.version}: {error}") from error
    identity = record.Record(
        model=plan.model,
        version=plan.version,
        digest=plan.manifest.digest,
        pid=child.pid,
        create_time=_create_time(child),
        host=plan.host,
        ports=plan.ports,
        workers=plan.fitted.workers,
        threads=plan.fitted.threads,
        root=layout.root,
        temp=layout.temp,
        started_at=time.time(),
    )
    try:
        record.write(identity)
    except OSError as error:
        # A process without a record would be an orphan to the next agent.
        Process(identity, child).kill()
        raise errors.LaunchFailed(f"cannot write {layout.root / record.FILE}: {error}") from error
    return Process(identity, child)


def runtime(plan: Plan) -> manifest.Runtime:
    """What the handler is told about where it runs."""
    return manifest.Runtime(
        model=plan.model,
        version=plan.version,
        pool=plan.pool,
        digest=plan.manifest.digest,
        threads=plan.fitted.threads,
        device="gpu" if plan.device == "gpu" else "cpu",
        max_response_bytes=plan.manifest.serving.max_response_bytes,
        golden=plan.manifest.golden,
    )


def _write(plan: Plan, layout: Layout) -> None:
    serving = plan.manifest.serving
    # Read first: writing would make the folder of a copy that is gone, and it would look like a copy again.
    archive_manifest = layout.model / "MAR-INF" / "MANIFEST.json"
    packed = archive_manifest.read_text()
    # Logs of the launch before are kept once, to be read after a crash; the worker's log must start empty, since a
    # failed load is recognized in it.
    previous = layout.root / "logs.previous"
    if layout.logs.exists():
        shutil.rmtree(previous, ignore_errors=True)
        layout.logs.rename(previous)
    layout.logs.mkdir(parents=True)
    layout.properties.parent.mkdir(parents=True, exist_ok=True)
    layout.properties.write_text(
        config.properties(
            model=plan.model,
            serving=serving,
            fitted=plan.fitted,
            layout=layout,
            ports=plan.ports,
            host=plan.host,
            cores=plan.cores,
            gpus=plan.gpus if plan.device == "gpu" else 0,
        )
    )
    layout.log4j.write_text(config.log4j(layout=layout, model=plan.model, version=plan.version))
    layout.metrics.write_text(config.metrics_config())
    _replace(
        layout.model / MODEL_CONFIG_FILE,
        config.model_config(serving=serving, fitted=plan.fitted, device=plan.device),
    )
    _replace(layout.model / manifest.RUNTIME_FILE, runtime(plan).model_dump_json(indent=2))
    _replace(
        archive_manifest,
        config.patch_archive_manifest(packed, model=plan.model, version=plan.version, config_file=MODEL_CONFIG_FILE),
    )


def _replace(path: Path, text: str) -> None:
    # Unpacked files may be read-only; a new file under the old name needs no right to the old one.
    record.write_atomically(path, text)


def _temp(root: Path) -> Path:
    inside = root / "tmp"
    if len(str(inside)) <= SOCKET_FOLDER_CHARACTERS:
        shutil.rmtree(inside, ignore_errors=True)
        inside.mkdir(parents=True)
        return inside
    return Path(tempfile.mkdtemp(prefix="slipway-"))


def _create_time(child: subprocess.Popen[bytes]) -> float:
    try:
        return psutil.Process(child.pid).create_time()
    except psutil.Error:
        return time.time()


def _describe_exit(code: int) -> str:
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"killed by {signal.Signals(-code).name}"
    if code == 3:
        return "exited with code 3: Java ran out of memory (ExitOnOutOfMemoryError)"
    return f"exited with code {code}"
