"""Run the benchmarks, print tables, write JSON."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import tempfile
import time
import traceback
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from bench import harness, machine, table

BENCHMARKS = {
    "noop": "a model that does nothing, through the gateway, beside stock TorchServe",
    "promotion": "promote and roll back while requests flow",
    "transfer": "publish and pull 1 GB, beside bare boto3",
    "handlers": "image decoding and ResNet-50, beside Pillow and a bare loop",
}

LOG_WIDTH = 120
"""Columns when the output goes to a file or a pipe."""


def main() -> int:
    arguments = _parse()
    console = Console()
    if not console.is_terminal:
        console = Console(width=LOG_WIDTH)
    outcome: dict[str, Any] = {
        "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine.facts(),
        "benchmarks": {},
        "failed": {},
    }
    for name in [arguments.only] if arguments.only else BENCHMARKS:
        console.rule(f"{name}: {BENCHMARKS[name]}", align="left")
        started = time.monotonic()
        # A short path: unix sockets below it may have 107 characters at most.
        with tempfile.TemporaryDirectory(prefix=f"bench-{name[:4]}-", ignore_cleanup_errors=True) as work:
            options = harness.Options(
                work=Path(work),
                rounds=arguments.rounds,
                say=lambda text, since=started: console.print(
                    f"{time.monotonic() - since:5.0f} s  {text}", style="dim"
                ),
            )
            try:
                report: harness.Report = importlib.import_module(f"bench.{name}").run(options)
            except Exception:  # the others still run; the exit code tells
                outcome["failed"][name] = traceback.format_exc()
                console.print(outcome["failed"][name], style="red", markup=False, highlight=False)
                continue
        outcome["benchmarks"][name] = report.as_json()
        table.show(console, report)
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(outcome, indent=1) + "\n")
        console.print(f"wrote {arguments.json}")
    return 1 if outcome["failed"] else 0


def _parse() -> argparse.Namespace:
    listed = "\n".join(f"  {name:10} {what}" for name, what in BENCHMARKS.items())
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description=f"Measure Slipway against baselines in the same run.\n\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", choices=[*BENCHMARKS], help="run one benchmark")
    parser.add_argument("--rounds", type=int, help="turns of each side (default: the benchmark's own)")
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    parser.add_argument(
        "--json", type=Path, default=Path("bench/results") / f"{stamp}.json", help="where figures and machine facts go"
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
