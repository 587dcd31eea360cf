"""Text that comes token by token, through the whole stack."""

from __future__ import annotations

import json
from pathlib import Path

import grpc
import httpx
import pytest

from serving.protocol import inference_pb2, inference_pb2_grpc
from tests.support.stack import Stack
from tests.support.tiny_models import gpt

pytestmark = pytest.mark.e2e

PROMPT = {"text": "a ship", "max_new_tokens": 8}


@pytest.fixture
def writer(stack: Stack, tmp_path: Path) -> Stack:
    gpt(tmp_path / "model")
    model = {
        "name": "writer",
        "handler": "transformer",
        "model_file": "model",
        "options": {"task": "text-generation", "max_new_tokens": 16},
    }
    (tmp_path / "model.yaml").write_text(json.dumps(model))
    pushed = stack.push(tmp_path / "model.yaml")
    stack.promote("writer", pushed["version"])
    return stack


def test_rest_and_grpc_stream_the_tokens_of_the_same_text(writer: Stack) -> None:
    whole = httpx.post(f"{writer.gateway}/predictions/writer", json=PROMPT, timeout=60).json()

    with httpx.stream(
        "POST", f"{writer.gateway}/predictions/writer", json=PROMPT | {"stream": True}, timeout=60
    ) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["slipway-model-version"] == "1"
        events = [json.loads(line.removeprefix("data: ")) for line in answer.iter_lines() if line]
    *pieces, last = events
    assert len(pieces) > 1
    assert last == whole
    assert "".join(piece["token"] for piece in pieces) == whole["text"]

    request = inference_pb2.PredictionsRequest(
        model_name="writer", input={"data": json.dumps(PROMPT | {"stream": True}).encode()}
    )
    with grpc.insecure_channel(f"127.0.0.1:{writer.port}") as channel:
        stub = inference_pb2_grpc.InferenceAPIsServiceStub(channel)
        messages = [json.loads(message.prediction) for message in stub.StreamPredictions(request, timeout=60)]
        unary = json.loads(stub.Predictions(request, timeout=60).prediction)
    assert messages == events
    assert unary == whole, "a unary call that asks for a stream gets the whole answer"
