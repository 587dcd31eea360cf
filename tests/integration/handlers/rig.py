"""One model in a real TorchServe, without agent, gateway or store."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc
import httpx

from model_store import layout, manifest
from serving.protocol import inference_pb2, inference_pb2_grpc
from serving.torchserve import config, installation, launch, ports
from tests.support import waiting

MODEL = "under-test"
VERSION = 7


@dataclass(kw_only=True)
class Served:
    """A running server process and the ways to ask it."""

    process: launch.Process
    http: httpx.Client
    channel: grpc.Channel

    def post(self, body: bytes, *, content_type: str | None = "text/plain", **headers: str) -> httpx.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        if content_type is not None:
            named["content-type"] = content_type
        return self.http.post(f"/predictions/{MODEL}", content=body, headers=named)

    def predict(self, **inputs: bytes) -> bytes:
        stub = inference_pb2_grpc.InferenceAPIsServiceStub(self.channel)
        return stub.Predictions(_request(inputs), timeout=30).prediction

    def stream(self, **inputs: bytes) -> list[bytes]:
        stub = inference_pb2_grpc.InferenceAPIsServiceStub(self.channel)
        return [piece.prediction for piece in stub.StreamPredictions(_request(inputs), timeout=30)]

    @property
    def workers(self) -> set[int]:
        return self.process.worker_pids()

    @property
    def log(self) -> str:
        path = self.process.layout.worker_log
        return path.read_text(errors="replace") if path.exists() else ""


@contextlib.contextmanager
def serving(
    root: Path,
    *,
    handler: str = "file:own.py",
    files: Mapping[str, str | bytes] | None = None,
    wait: bool = True,
    settings: Mapping[str, Any] | None = None,
    **described: Any,
) -> Iterator[Served]:
    """Serve an archive's folder.

    Args:
        files: name → content; the shim and the descriptions are added.
        settings: members of ``serving`` of model.yaml.
        described: further members of slipway.json.
    """
    given = {"workers": 1, "threads": 1, "batch_size": 8, "max_batch_delay_ms": 200, "startup_timeout_s": 120}
    document = manifest.Manifest(
        model=MODEL,
        digest="0" * 64,
        size_bytes=0,
        unpacked_bytes=0,
        archive_key="none",
        config=manifest.ArchiveConfig(handler=handler, **described),
        serving=manifest.Serving.model_validate(given | dict(settings or {})),
        provenance=manifest.Provenance(
            created_at=datetime(2026, 1, 1, tzinfo=UTC), created_by="test", host="test", slipway="0"
        ),
    )
    folder = root / "model"
    (folder / "MAR-INF").mkdir(parents=True)
    (folder / manifest.CONFIG_FILE).write_text(document.config.model_dump_json())
    (folder / manifest.ENTRY_FILE).write_text(layout.ENTRY_SOURCE)
    archive = {"runtime": "python", "model": {"modelName": MODEL, "handler": manifest.ENTRY_FILE}}
    (folder / "MAR-INF" / "MANIFEST.json").write_text(json.dumps(archive))
    for name, content in (files or {}).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    plan = launch.Plan(
        model=MODEL,
        version=VERSION,
        pool="cpu",
        manifest=document,
        fitted=config.Fit(workers=document.serving.workers or 1, threads=1),
        ports=ports.pick(host=ports.LOOPBACK),
        host=ports.LOOPBACK,
        cores=2,
        gpus=0,
        root=root,
    )
    process = launch.start(plan, installation.find())
    url = f"http://{ports.LOOPBACK}:{plan.ports.rest}"
    channel = grpc.insecure_channel(f"{ports.LOOPBACK}:{plan.ports.grpc}")
    management = f"http://{ports.LOOPBACK}:{plan.ports.management}/models/{MODEL}"
    try:
        with httpx.Client(base_url=url, timeout=60, trust_env=False) as http:
            served = Served(process=process, http=http, channel=channel)
            if wait:
                waiting.wait_until(lambda: _ready(management, served), timeout_s=120, what="the worker to be ready")
            yield served
    finally:
        channel.close()
        process.kill()
        process.clean()


def _ready(management: str, served: Served) -> bool:
    reason = served.process.exit_reason()
    assert reason is None, f"TorchServe {reason}"
    assert "Backend worker process died." not in served.log, served.log[-4000:]
    try:
        described = httpx.get(management, timeout=5, trust_env=False).json()
    except httpx.TransportError:
        return False
    workers = described[0]["workers"] if isinstance(described, list) else []
    return bool(workers) and all(worker["status"] == "READY" for worker in workers)


def _request(inputs: Mapping[str, bytes]) -> inference_pb2.PredictionsRequest:
    return inference_pb2.PredictionsRequest(model_name=MODEL, input=dict(inputs))
