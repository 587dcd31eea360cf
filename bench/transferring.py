"""One transfer in a process of its own, so that its time and its memory are its own.

``python -m bench.transferring SIDE ACTION FILE DIGEST BUCKET``: SIDE is ``ours`` or ``bare``, ACTION ``publish`` or
``pull``; the store comes from the environment. Prints one JSON line.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import boto3.s3.transfer

from model_store import manifest, settings, store

MODEL = "bench"


def main() -> int:
    side, action, file, digest, bucket = sys.argv[1:]
    where = settings.Settings.from_env().at(f"s3://{bucket}")
    work = (_ours if side == "ours" else _bare)(action, Path(file), digest, where)
    started, worked = time.perf_counter(), time.process_time()
    work()
    seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - worked
    print(json.dumps({"seconds": seconds, "cpu_seconds": cpu_seconds, "peak_bytes": _memory("VmHWM")}))
    return 0


def _ours(action: str, file: Path, digest: str, where: settings.Settings) -> Callable[[], object]:
    bucket = store.Store(where)
    size = file.stat().st_size if action == "publish" else bucket.head(digest) or 0
    if action == "pull":
        return lambda: bucket.fetch(digest, size, file)
    document = manifest.Manifest(
        model=MODEL,
        digest=digest,
        size_bytes=size,
        unpacked_bytes=size,
        archive_key=store.archive_key(digest),
        config=manifest.ArchiveConfig(handler="image_classifier"),
        provenance=manifest.Provenance(created_at=datetime.now(UTC), created_by="bench", host="bench", slipway="0"),
    )
    return lambda: bucket.publish(file, document)


def _bare(action: str, file: Path, digest: str, where: settings.Settings) -> Callable[[], object]:
    """boto3's own managed transfer with its defaults (8 MiB parts, 10 threads), nothing verified."""
    client = where.client()
    config = boto3.s3.transfer.TransferConfig()
    key = store.archive_key(digest)
    if action == "pull":
        return lambda: client.download_file(where.bucket, key, str(file), Config=config)
    return lambda: client.upload_file(str(file), where.bucket, key, Config=config)


def _memory(field: str) -> int:
    """Bytes. Not getrusage: its peak is inherited from the process that started this one."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"this system tells no {field}")


if __name__ == "__main__":
    sys.exit(main())
