"""Why Envoy refuses a configuration: files are refused in its log only, but a trial run says it to whoever asks."""

from __future__ import annotations

import asyncio
import json
import re
import tempfile
from pathlib import Path
from typing import Any

from serving.gateway import bootstrap, xds
from serving.gateway.settings import Settings

TRIAL_TIMEOUT_S = 20.0
MAX_CHARACTERS = 1000


async def explain(settings: Settings, snapshot: xds.Snapshot) -> str:
    """Envoy's own words about a snapshot, found with ``--mode validate``; empty when it has nothing to object."""
    with tempfile.TemporaryDirectory(dir=settings.folder, prefix="trial-") as folder:
        file = Path(folder) / "bootstrap.json"
        file.write_text(json.dumps(_static(bootstrap.document(settings), snapshot)))
        process = await asyncio.create_subprocess_exec(
            bootstrap.binary(), "-c", str(file), "--mode", "validate", "--log-level", "error", "--log-format", "%v",
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        try:
            output, _ = await asyncio.wait_for(process.communicate(), TRIAL_TIMEOUT_S)
        except TimeoutError:
            process.kill()
            await process.wait()
            return ""
    return _reason(output.decode(errors="replace")) if process.returncode else ""


def _static(document: dict[str, Any], snapshot: xds.Snapshot) -> dict[str, Any]:
    """The bootstrap with all that would come by files inside it."""
    resources = document["static_resources"]

    def plain(resource: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in resource.items() if name != "@type"}

    resources["clusters"] += [plain(cluster) for cluster in snapshot.clusters.values()]
    manager = resources["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    del manager["rds"], document["dynamic_resources"]
    manager["route_config"] = plain(snapshot.routes)
    return document


def _reason(output: str) -> str:
    """The complaint, without the configuration that Envoy repeats around it."""
    constraint = re.search(r"Proto constraint validation failed \((.*)\)", output)
    if constraint:
        return constraint[1][:MAX_CHARACTERS]
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    text = next((line for line in lines if "error" in line.lower() or "malformed" in line.lower()), "".join(lines[-1:]))
    return re.sub(r"^error initializing configuration '[^']*': ", "", text)[:MAX_CHARACTERS]
