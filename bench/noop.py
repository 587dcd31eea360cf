"""A model that does nothing, 32 connections: what the whole way through Slipway costs, beside stock TorchServe.

Ours goes through the gateway with a version, metrics and timeouts per request; the stock server is reached directly.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from bench import harness, stacks, stock

MODEL = Path(__file__).parent / "noop_model"
CONNECTIONS = 32
ROUNDS = 5
SECONDS = 6.0
WARM_UP_S = 8.0
"""The JVM compiles what is hot only after some ten thousand requests."""


def run(options: harness.Options) -> harness.Report:
    options.say("starting a local stack, and stock TorchServe beside it")
    with (
        stacks.running(options.work / "home") as stack,
        stock.serving(MODEL / "noop.py", model="noop", work=options.work / "stock") as baseline,
    ):
        version = stack.push(MODEL / "model.yaml")["version"]
        stack.promote("noop", version)
        ours = f"{stack.gateway}/predictions/noop"
        direct = stacks.server_url(stack, "noop", version)
        options.say("warming up")
        for url in (ours, baseline):
            _drive(url, seconds=WARM_UP_S)
        rounds = options.rounds or ROUNDS
        options.say(f"{rounds} rounds of 3 x {SECONDS:g} s")
        latencies: dict[str, list[float]] = {}

        def side(name: str, url: str) -> Callable[[], float]:
            def measure() -> float:
                figures = _drive(url, seconds=SECONDS)
                latencies.setdefault(name, []).append(figures["p99_ms"])
                return figures["requests_per_s"]

            return measure

        through, bare, inside = harness.take_turns(
            rounds, side("ours", ours), side("stock", baseline), side("direct", direct)
        )
    return harness.Report(
        title=f"No-op model, {CONNECTIONS} connections, one machine for server and load",
        figures=[
            harness.Comparison(
                name="through the gateway",
                unit="req/s",
                ours=through,
                baseline=bare,
                baseline_name="stock TorchServe, direct",
                goal=1.0,
            ),
            harness.Comparison(
                name="p99 latency",
                unit="ms",
                ours=latencies["ours"],
                baseline=latencies["stock"],
                baseline_name="stock TorchServe, direct",
                higher_is_better=False,
            ),
            harness.Comparison(
                name="what the gateway leaves",
                unit="req/s",
                ours=through,
                baseline=inside,
                baseline_name="our server process, direct",
            ),
        ],
    )


def _drive(url: str, *, seconds: float) -> dict[str, float]:
    command = [sys.executable, "-m", "bench.load", url]
    command += ["--connections", str(CONNECTIONS), "--seconds", str(seconds)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 60, check=False)
    if done.returncode:
        raise RuntimeError(f"load on {url} failed: {done.stderr.strip()}")
    return json.loads(done.stdout)
