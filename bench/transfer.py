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
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import harness
from tests.support import seaweed

ACTIONS = ("publish", "pull")
SIZE_BYTES = 1_000_000_000
BLOCK_BYTES = 8 * 1024 * 1024
ROUNDS = 5
MEMORY_LIMIT_MB = 300
GOAL = 0.9
TURN_TIMEOUT_S = 300


@dataclass(frozen=True, kw_only=True)
class Turn:
    """One transfer."""

    rate: float
    """MB/s."""
    cpu_s: float
    """Processor time of the transferring process; the store's own is not in it."""
    peak_mb: float


Turns = dict[str, list[Turn]]
"""Action → one turn for each round."""


def run(options: harness.Options) -> harness.Report:
    artifact = options.work / "artifact.mar"
    options.say(f"writing {SIZE_BYTES / 1e9:g} GB of random bytes")
    digest = _write_random(artifact)
    measured: dict[str, Turns] = {side: {action: [] for action in ACTIONS} for side in ("ours", "bare")}
    with seaweed.running(options.work / "weed") as store:
        _turn(store, "bare", artifact, digest)  # the first transfer after a start pays for growing the volumes
        for _ in range(options.rounds or ROUNDS):
            for side, turns in measured.items():
                for action, turn in _turn(store, side, artifact, digest).items():
                    turns[action].append(turn)
                last = ", ".join(f"{action} {turns[action][-1].rate:.0f} MB/s" for action in ACTIONS)
                options.say(f"{side}: {last}")
    return harness.Report(
        title="A 1 GB artifact, SeaweedFS on the same machine",
        figures=list(_figures(measured["ours"], measured["bare"])),
        notes=["Memory is of the whole Python process, imports included; ours hashes or verifies every byte as well."],
    )


def _figures(ours: Turns, bare: Turns) -> Iterator[harness.Comparison | harness.Reading]:
    for action in ACTIONS:
        yield harness.Comparison(
            name=action,
            unit="MB/s",
            ours=[turn.rate for turn in ours[action]],
            baseline=[turn.rate for turn in bare[action]],
            baseline_name="bare boto3",
            goal=GOAL,
        )
    for action in ACTIONS:
        yield harness.Comparison(
            name=f"processor time of one {action}",
            unit="s",
            ours=[turn.cpu_s for turn in ours[action]],
            baseline=[turn.cpu_s for turn in bare[action]],
            baseline_name="bare boto3",
            higher_is_better=False,
        )
    peaks = [turn.peak_mb for action in ACTIONS for turn in ours[action]]
    yield harness.Reading(name="peak resident memory", unit="MB", values=peaks, limit=MEMORY_LIMIT_MB)


def _turn(store: seaweed.Seaweed, side: str, artifact: Path, digest: str) -> dict[str, Turn]:
    """Publish into a new bucket, pull it back, remove the bucket."""
    bucket = f"bench-{uuid.uuid4().hex[:12]}"
    pulled = artifact.with_name("pulled.mar")
    store.client().create_bucket(Bucket=bucket)
    try:
        return {
            "publish": _transfer(store, side, "publish", artifact, digest, bucket),
            "pull": _transfer(store, side, "pull", pulled, digest, bucket),
        }
    finally:
        pulled.unlink(missing_ok=True)
        _remove(store.client(), bucket)


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


def _transfer(store: seaweed.Seaweed, side: str, action: str, file: Path, digest: str, bucket: str) -> Turn:
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
    figures = json.loads(done.stdout)
    return Turn(
        rate=SIZE_BYTES / 1e6 / figures["seconds"],
        cpu_s=figures["cpu_seconds"],
        peak_mb=figures["peak_bytes"] / 1e6,
    )


def _remove(client: Any, bucket: str) -> None:
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket):
        for entry in page.get("Contents", ()):
            client.delete_object(Bucket=bucket, Key=entry["Key"])
    client.delete_bucket(Bucket=bucket)
