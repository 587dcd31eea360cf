"""Publish and pull of 1 GB by the model store, beside boto3's bare multipart transfer to the same SeaweedFS.

Ours hashes what it sends and verifies what it receives, writes conditionally, and leaves nothing half done; the bare
transfer does none of that. Every turn goes to a bucket of its own, which is removed afterwards.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench import harness
from tests.support import seaweed

SIZE_BYTES = 1_000_000_000
BLOCK_BYTES = 8 * 1024 * 1024
ROUNDS = 3
MEMORY_LIMIT_MB = 300
GOAL = 0.9
TURN_TIMEOUT_S = 300


def run(options: harness.Options) -> harness.Report:
    artifact = options.work / "artifact.mar"
    options.say(f"writing {SIZE_BYTES / 1e9:g} GB of random bytes")
    digest = _write_random(artifact)
    peaks: list[float] = []
    with seaweed.running(options.work / "weed") as store:

        def turn(side: str) -> Callable[[], tuple[float, float]]:
            def measure() -> tuple[float, float]:
                bucket = f"bench-{uuid.uuid4().hex[:12]}"
                store.client().create_bucket(Bucket=bucket)
                rates = []
                try:
                    for action, file in (("publish", artifact), ("pull", options.work / "pulled.mar")):
                        done = _transfer(store, side, action, file, digest, bucket)
                        rates.append(SIZE_BYTES / 1e6 / done["seconds"])
                        if side == "ours":
                            peaks.append(done["peak_bytes"] / 1e6)
                finally:
                    (options.work / "pulled.mar").unlink(missing_ok=True)
                    _remove(store.client(), bucket)
                options.say(f"{side}: publish {rates[0]:.0f} MB/s, pull {rates[1]:.0f} MB/s")
                return rates[0], rates[1]

            return measure

        turn("bare")()  # the first transfer after a start pays for growing the volumes
        ours: list[tuple[float, float]] = []
        bare: list[tuple[float, float]] = []
        for _ in range(options.rounds or ROUNDS):
            ours.append(turn("ours")())
            bare.append(turn("bare")())
    return harness.Report(
        title="A 1 GB artifact, SeaweedFS on the same machine",
        figures=[
            *(
                harness.Comparison(
                    name=action,
                    unit="MB/s",
                    ours=[rates[index] for rates in ours],
                    baseline=[rates[index] for rates in bare],
                    baseline_name="bare boto3",
                    goal=GOAL,
                )
                for index, action in enumerate(("publish", "pull"))
            ),
            harness.Reading(name="peak resident memory", unit="MB", values=peaks, limit=MEMORY_LIMIT_MB),
        ],
        notes=["Memory is of the whole Python process, imports included; ours hashes or verifies every byte as well."],
    )


def _write_random(path: Path) -> str:
    digest = hashlib.sha256()
    left = SIZE_BYTES
    with path.open("wb") as file:
        while left:
            block = os.urandom(min(BLOCK_BYTES, left))
            digest.update(block)
            file.write(block)
            left -= len(block)
    return digest.hexdigest()


def _transfer(store: seaweed.Seaweed, side: str, action: str, file: Path, digest: str, bucket: str) -> dict[str, Any]:
    os.sync()  # what the turn before left in memory is not to be written out during this one
    command = [sys.executable, "-m", "bench.transferring", side, action, str(file), digest, bucket]
    done = subprocess.run(
        command,
        env=os.environ | store.environment(bucket),
        capture_output=True,
        text=True,
        timeout=TURN_TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{side} {action} failed:\n{done.stderr}")
    return json.loads(done.stdout)


def _remove(client: Any, bucket: str) -> None:
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket):
        for entry in page.get("Contents", ()):
            client.delete_object(Bucket=bucket, Key=entry["Key"])
    client.delete_bucket(Bucket=bucket)
