"""What must be true before anything is started: each fault is one line, and nothing is left running."""

from __future__ import annotations

import shutil
import sys
import tempfile

from serving.gateway import bootstrap
from serving.gateway import errors as gateway_errors
from serving.local import errors, seaweed
from serving.local.home import Home, unusable
from serving.torchserve import errors as torchserve_errors
from serving.torchserve import installation

MIN_FREE_BYTES = 512 * 1024 * 1024
"""A database that cannot write and a store that refuses uploads are worse than no start."""


def home(where: Home) -> None:
    """The home can be written to and its disk has room.

    Raises:
        HomeUnusable: says what to do.
    """
    where.create()
    try:
        with tempfile.TemporaryFile(dir=where.root) as probe:
            probe.write(b"slipway")
            probe.flush()
        free = shutil.disk_usage(where.root).free
    except OSError as error:
        raise unusable(where, error) from error
    if free < MIN_FREE_BYTES:
        raise errors.HomeUnusable(
            f"the disk of the home {where} is full: {free // 2**20} MiB are free and a stack needs at least "
            f"{MIN_FREE_BYTES // 2**20} MiB; make room there, or choose another --home"
        )


def programs(*, worker_python: str | None, with_store: bool) -> None:
    """JVM, TorchServe, Envoy and SeaweedFS are there.

    Args:
        worker_python: interpreter of TorchServe's workers; ``None`` is this one.

    Raises:
        ProgramMissing: names what is missing and how to install it.
    """
    try:
        bootstrap.binary()
        installation.find(worker_python or sys.executable)
    except (gateway_errors.EnvoyMissing, torchserve_errors.NotInstalled) as error:
        raise errors.ProgramMissing(str(error)) from error
    if with_store:
        seaweed.binary()
