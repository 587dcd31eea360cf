"""What Slipway is for: push, promote, answer, promote the next version under traffic, roll back, losing nothing."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable
from pathlib import Path

import grpc
import httpx
import pytest

from serving.protocol import inference_pb2, inference_pb2_grpc
from tests.e2e.traffic import Traffic
from tests.support.stack import Stack

pytestmark = pytest.mark.e2e

RATE = 25
"""Requests a second by each protocol: enough to catch a lost request, little enough for two busy cores."""


@pytest.fixture(scope="module")
def sample(digits: Path) -> bytes:
    return (digits.parent / "samples" / "3.png").read_bytes()


@pytest.fixture
def serving_digits(stack: Stack, digits: Path) -> Stack:
    pushed = stack.push(digits)
    stack.promote("digits", pushed["version"])
    return stack


def rest(stack: Stack, client: httpx.Client, sample: bytes) -> Callable[[], str | None]:
    def send() -> str | None:
        answer = client.post(
            f"{stack.gateway}/predictions/digits", content=sample, headers={"content-type": "image/png"}
        )
        answer.raise_for_status()
        assert answer.json()[0]["label"] == "3"
        return answer.headers.get("slipway-model-version")

    return send


def over_grpc(channel: grpc.Channel, sample: bytes) -> Callable[[], str | None]:
    stub = inference_pb2_grpc.InferenceAPIsServiceStub(channel)

    def send() -> str | None:
        request = inference_pb2.PredictionsRequest(model_name="digits", input={"data": sample})
        response, call = stub.Predictions.with_call(request, timeout=30)
        assert b'"label"' in response.prediction
        metadata = dict(call.initial_metadata()) | dict(call.trailing_metadata())
        return metadata.get("slipway-model-version")

    return send


def test_pushing_the_same_content_twice_is_the_same_version(stack: Stack, digits: Path, other_digits: Path) -> None:
    first = stack.push_again(digits)
    again = stack.push_again(digits)
    other = stack.push(other_digits)
    assert again == first
    assert other["version"] != first["version"]
    assert other["digest"] != first["digest"]


def test_a_promoted_model_answers_over_rest_and_grpc_with_its_version(
    serving_digits: Stack, digits: Path, sample: bytes
) -> None:
    version = str(serving_digits.push(digits)["version"])
    with httpx.Client(timeout=30) as client:
        assert rest(serving_digits, client, sample)() == version
    with grpc.insecure_channel(f"127.0.0.1:{serving_digits.port}") as channel:
        assert over_grpc(channel, sample)() == version


def test_predict_prints_version_output_and_time(serving_digits: Stack, digits: Path) -> None:
    file = str(digits.parent / "samples" / "3.png")
    by_rest = serving_digits.json("predict", "digits", file)
    by_grpc = serving_digits.json("predict", "digits", file, "--grpc")
    for answer in (by_rest, by_grpc):
        assert set(answer) >= {"version", "output", "ms"}
        assert answer["output"][0]["label"] == "3"
    assert by_rest["version"] == by_grpc["version"]


def test_promotion_and_rollback_under_traffic_lose_nothing(
    serving_digits: Stack, digits: Path, other_digits: Path, sample: bytes
) -> None:
    stack = serving_digits
    old = str(stack.push(digits)["version"])
    new = str(stack.push(other_digits)["version"])
    channel = grpc.insecure_channel(f"127.0.0.1:{stack.port}")
    with (
        httpx.Client(timeout=30) as client,
        Traffic(rest(stack, client, sample), rate=RATE) as by_rest,
        Traffic(over_grpc(channel, sample), rate=RATE) as by_grpc,
    ):
        assert stack.promote("digits", int(new))["state"] == "done"
        promoted_at = time.monotonic()
        # A command under traffic gives both protocols time to show where they now go.
        stack.run("predict", "digits", str(digits.parent / "samples" / "3.png"))
        rollback_at = time.monotonic()
        assert stack.json("rollback", "digits", "--wait")["state"] == "done"
        rolled_back_at = time.monotonic()
        stack.run("predict", "digits", str(digits.parent / "samples" / "3.png"))
    channel.close()
    for traffic in (by_rest, by_grpc):
        assert traffic.failures() == []
        assert set(traffic.versions()) == {old, new}
        assert traffic.versions_answered(sent_after=promoted_at, answered_before=rollback_at) == {new}
        assert traffic.versions_answered(sent_after=rolled_back_at) == {old}


def test_open_inference_protocol_is_answered_by_the_same_handler(serving_digits: Stack, sample: bytes) -> None:
    gateway = serving_digits.gateway
    assert httpx.get(f"{gateway}/v2/health/ready").status_code == 200
    assert httpx.get(f"{gateway}/v2/models/digits/ready").status_code == 200
    metadata = httpx.get(f"{gateway}/v2/models/digits").json()
    assert metadata["name"] == "digits"
    assert [tensor["name"] for tensor in metadata["outputs"]] == ["label", "score"]
    body = {
        "id": "a",
        "inputs": [{"name": "image", "datatype": "BYTES", "shape": [1], "data": [base64.b64encode(sample).decode()]}],
    }
    answer = httpx.post(f"{gateway}/v2/models/digits/infer", json=body, timeout=30)
    assert answer.status_code == 200, answer.text
    assert answer.json()["id"] == "a"
    assert answer.json()["outputs"]
