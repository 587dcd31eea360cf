"""Promote and roll back while requests flow: what gets lost, who answers afterwards, how long the switch takes."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx

from bench import harness, stacks
from bench.traffic import Traffic
from tests.support.stack import Stack

TRAINER = Path(__file__).resolve().parents[1] / "examples" / "digits" / "train.py"
RATE = 100.0
"""Requests a second, half of them by REST and half by gRPC."""

ROUNDS = 3
DWELL_S = 2.0
"""Traffic between two moves, long enough to catch an answer of the wrong version."""

DONE_TIMEOUT_S = 180
POLL_S = 15
LONGEST_ERROR = 300


@dataclass(frozen=True, kw_only=True)
class Move:
    """One promotion or rollback as its client saw it; times of ``time.monotonic()``."""

    old: int
    new: int
    asked_at: float
    done_at: float
    next_at: float
    """When the move after this one was asked for."""
    shift_s: float
    """From the first step that moves traffic to ``done``, by the control plane's own times."""

    @property
    def total_s(self) -> float:
        return self.done_at - self.asked_at


def run(options: harness.Options) -> harness.Report:
    options.say("training two versions of digits")
    folders = [_train(options.work / f"digits-{seed}", seed=seed) for seed in (1, 2)]
    options.say("starting a local stack")
    with stacks.running(options.work / "home") as stack:
        old, new = (stack.push(folder / "model.yaml")["version"] for folder in folders)
        stack.promote("digits", old)
        sample = folders[0] / "samples" / "3.png"
        options.say(f"{RATE:g} requests/s, half of them by gRPC")
        rest, over_grpc = (
            Traffic(protocol, gateway=stack.gateway, model="digits", file=sample, rate=RATE / 2)
            for protocol in ("rest", "grpc")
        )
        with rest, over_grpc, httpx.Client(base_url=stack.control_plane, timeout=POLL_S + 15) as client:
            time.sleep(DWELL_S)
            promotions, rollbacks = _moves(client, stack, old, new, rounds=options.rounds or ROUNDS, say=options.say)
    return _report(promotions, rollbacks, (rest, over_grpc))


def _train(folder: Path, *, seed: int) -> Path:
    command = [sys.executable, str(TRAINER), "--out", str(folder), "--seed", str(seed)]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    return folder


def _moves(
    client: httpx.Client, stack: Stack, old: int, new: int, *, rounds: int, say: Any
) -> tuple[list[Move], list[Move]]:
    promotions: list[Move] = []
    rollbacks: list[Move] = []
    for _ in range(rounds):
        promotions.append(_move(client, "promotions", {"version": new, "to": "production"}, old=old, new=new))
        say(f"promoted in {promotions[-1].total_s:.2f} s, of which traffic moved for {promotions[-1].shift_s:.2f} s")
        rollbacks.append(_move(client, "rollback", {"stage": "production"}, old=new, new=old))
        say(f"rolled back in {rollbacks[-1].total_s:.2f} s")
    return promotions, rollbacks


def _move(client: httpx.Client, action: str, body: dict[str, Any], *, old: int, new: int) -> Move:
    asked_at = time.monotonic()
    rollout = client.post(f"/v1/models/digits/{action}", json=body).raise_for_status().json()
    while rollout["ended_at"] is None:
        if time.monotonic() - asked_at > DONE_TIMEOUT_S:
            raise RuntimeError(f"not done within {DONE_TIMEOUT_S} s: {rollout}")
        known = {"wait_s": POLL_S, "state": rollout["state"]}
        rollout = client.get(f"/v1/rollouts/{rollout['id']}", params=known).raise_for_status().json()
    done_at = time.monotonic()
    if rollout["state"] != "done":
        raise RuntimeError(f"{action} ended {rollout['state']}: {rollout['error']}")
    time.sleep(DWELL_S)
    shifted, ended = (datetime.fromisoformat(rollout[name]) for name in ("shifted_at", "ended_at"))
    return Move(
        old=old,
        new=new,
        asked_at=asked_at,
        done_at=done_at,
        next_at=time.monotonic(),
        shift_s=(ended - shifted).total_seconds(),
    )


def _report(promotions: list[Move], rollbacks: list[Move], traffic: tuple[Traffic, ...]) -> harness.Report:
    moves = [*promotions, *rollbacks]
    failures = Counter(f"{each.protocol}: {error[:LONGEST_ERROR]}" for each in traffic for error in each.failures)
    stale = [
        answer
        for move in moves
        for each in traffic
        for answer in each.of_version(move.old, after=move.done_at, before=move.next_at)
    ]
    # An answer that the client's own process was late to read counts as stale too; one to a request that was sent
    # after done has no such excuse.
    asked_too_late = [answer for answer in stale if any(m.done_at < answer.sent_at < m.next_at for m in moves)]
    figures: list[harness.Comparison | harness.Reading] = []
    for each in traffic:
        waits = sorted(answer.answered_at - answer.sent_at for answer in each.answers)
        if not waits:
            raise RuntimeError(f"no request was sent by {each.protocol}")
        figures += [
            harness.Reading(name=f"failed requests, {each.protocol}", unit="", values=[len(each.failures)], limit=0),
            harness.Reading(
                name=f"99.9th percentile of latency, {each.protocol}",
                unit="ms",
                values=[1e3 * waits[int(len(waits) * 0.999)]],
            ),
        ]
    spans = [span for move in promotions for each in traffic if (span := _span(each, move)) is not None]
    return harness.Report(
        title=f"Promotion and rollback under {RATE:g} requests/s, half of them by gRPC",
        figures=[
            *figures,
            harness.Reading(name="answers of the old version after done", unit="", values=[len(stale)], limit=0),
            harness.Reading(name="… to requests sent after done", unit="", values=[len(asked_too_late)], limit=0),
            harness.Reading(
                name="promotion: the switch, once loaded", unit="s", values=[m.shift_s for m in promotions], limit=1
            ),
            harness.Reading(name="promotion: both versions answer for", unit="s", values=spans),
            harness.Reading(
                name="promotion: in all, the first with a cold load", unit="s", values=[m.total_s for m in promotions]
            ),
            harness.Reading(name="rollback: in all", unit="s", values=[m.total_s for m in rollbacks], limit=2),
        ],
        notes=[
            f"{sum(len(each.answers) for each in traffic)} requests in all; {len(moves)} moves.",
            *(f"failed {count} times: {error}" for error, count in failures.most_common(5)),
        ],
    )


def _span(traffic: Traffic, move: Move) -> float | None:
    """Seconds from the new version's first answer to the old one's last; 0 when they do not overlap."""
    new = traffic.of_version(move.new, after=move.asked_at, before=move.next_at)
    old = traffic.of_version(move.old, after=move.asked_at, before=move.next_at)
    if not new or not old:
        return None
    return max(0.0, old[-1].answered_at - new[0].answered_at)
