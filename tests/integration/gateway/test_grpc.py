"""TorchServe's gRPC and the Open Inference Protocol's gRPC through a real Envoy."""

from __future__ import annotations

import asyncio
import json
import struct
from typing import Any

import grpc
import orjson
import pytest
from google.protobuf import empty_pb2

from serving.gateway import oip
from serving.protocol import inference_pb2 as pb
from serving.protocol import inference_pb2_grpc as pb_grpc
from serving.protocol import open_inference_pb2 as oip_pb
from serving.protocol import open_inference_pb2_grpc as oip_grpc
from tests.support import gateway as g

pytestmark = [pytest.mark.integration, pytest.mark.anyio]

MIB = 1024 * 1024


async def predict(gateway: g.Gateway, *, stage: str | None = None, **fields: Any) -> tuple[bytes, str]:
    """The prediction and the version that answered."""
    async with gateway.channel() as channel:
        metadata = (("slipway-stage", stage),) if stage else None
        call = pb_grpc.InferenceAPIsServiceStub(channel).Predictions(
            pb.PredictionsRequest(**fields), metadata=metadata, timeout=20
        )
        answer = await call
        return answer.prediction, str(dict(await call.initial_metadata())["slipway-model-version"])


async def refusal(gateway: g.Gateway, **fields: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await predict(gateway, **fields)
    return caught.value.code(), caught.value.details() or ""


async def test_the_message_names_model_and_version(envoy: g.Gateway, one: g.Upstream, two: g.Upstream) -> None:
    versions = [g.version(1, [one.endpoint()]), g.version(2, [two.endpoint()])]
    await envoy.apply(g.config(g.model("digits", versions, production=1, staging=2), g.model("minilm", [])))
    data = {"data": b"x"}
    assert await predict(envoy, model_name="digits", input=data) == (b"1", "1")
    assert await predict(envoy, model_name="digits", model_version="2", input=data) == (b"2", "2")
    assert await predict(envoy, model_name="digits", input=data, stage="staging") == (b"2", "2")
    assert await predict(envoy, model_name="digits", input=data, stage="production") == (b"1", "1")


async def test_names_are_found_wherever_they_stand_in_the_message(envoy: g.Gateway, one: g.Upstream) -> None:
    await envoy.apply(g.config(g.model("digits", [g.version(1, [one.endpoint()])], production=1)))
    inputs = pb.PredictionsRequest(input={"a": b"x" * 300, "b": b"y" * 70_000}).SerializeToString()
    unknown_fields = b"\x50\x96\x01" + b"\x59" + b"12345678" + b"\x65" + b"1234" + b"\x7a\x03abc"
    name = pb.PredictionsRequest(model_name="digits").SerializeToString()
    async with envoy.channel() as channel:
        method = channel.unary_unary("/org.pytorch.serve.grpc.inference.InferenceAPIsService/Predictions")
        answer = await method(inputs + unknown_fields + name, timeout=20)
    assert pb.PredictionResponse.FromString(answer).prediction == b"1"
    assert set(one.calls[0].input) == {"a", "b"}


async def test_a_stream_is_marked_for_the_handler_and_nothing_else_is(envoy: g.Gateway, one: g.Upstream) -> None:
    await envoy.apply(g.config(g.model("digits", [g.version(1, [one.endpoint()])], production=1)))
    request = pb.PredictionsRequest(model_name="digits", input={"data": b"x" * 70_000, "stream": b"true"})
    async with envoy.channel() as channel:
        stub = pb_grpc.InferenceAPIsServiceStub(channel)
        pieces = [answer.prediction async for answer in stub.StreamPredictions(request, timeout=20)]
        await stub.Predictions(request, timeout=20)
    assert pieces == [b"a", b"b", b"c"]
    streamed, unary = one.calls
    assert dict(streamed.input) == {**request.input, "slipway-stream": b"true"}
    assert unary == request


@pytest.mark.parametrize("method", ["Predictions", "StreamPredictions"])
async def test_a_client_cannot_mark_its_own_call(envoy: g.Gateway, one: g.Upstream, method: str) -> None:
    await envoy.apply(g.config(g.model("digits", [g.version(1, [one.endpoint()])], production=1)))
    # Name behind value: a parser takes them in any order.
    entry = b"\x12\x04true" + b"\x0a\x0eslipway-stream"
    message = pb.PredictionsRequest(model_name="digits").SerializeToString() + b"\x1a" + bytes([len(entry)]) + entry
    async with envoy.channel() as channel:
        call = channel.unary_unary(f"/org.pytorch.serve.grpc.inference.InferenceAPIsService/{method}")
        with pytest.raises(grpc.RpcError) as caught:
            await call(message, timeout=20)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert one.calls == []


async def test_what_cannot_be_routed_gets_the_code_that_rest_means(envoy: g.Gateway, one: g.Upstream) -> None:
    versions = [g.version(1, [one.endpoint()], max_request_bytes=10_000), g.version(2)]
    await envoy.apply(g.config(g.model("digits", versions, production=1)))
    code = grpc.StatusCode
    data = {"data": b"x"}
    assert (await refusal(envoy, model_name="nope", input=data)) == (code.NOT_FOUND, "no model nope is served")
    assert (await refusal(envoy, model_name="digits", model_version="9", input=data))[0] is code.NOT_FOUND
    assert (await refusal(envoy, model_name="digits", stage="staging", input=data))[0] is code.NOT_FOUND
    assert (await refusal(envoy, model_name="digits", stage="qa", input=data))[0] is code.NOT_FOUND
    assert (await refusal(envoy, input=data))[0] is code.INVALID_ARGUMENT
    assert (await refusal(envoy, model_name='"; DROP', input=data))[0] is code.NOT_FOUND
    not_ready = await refusal(envoy, model_name="digits", model_version="2", input=data)
    assert not_ready == (code.UNAVAILABLE, "no replica of digits version 2 is ready; try again")
    too_large = await refusal(envoy, model_name="digits", input={"data": b"x" * 10_001})
    assert too_large == (code.RESOURCE_EXHAUSTED, "digits version 1 accepts requests of up to 10000 bytes")
    assert not one.calls


async def test_a_message_over_every_limit_is_refused_before_it_is_whole(envoy: g.Gateway, one: g.Upstream) -> None:
    version = g.version(1, [one.endpoint()], max_request_bytes=10_000)
    await envoy.apply(g.config(g.model("digits", [version], production=1)))
    code, _ = await refusal(envoy, model_name="digits", input={"data": b"x" * 5 * MIB})
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_garbage_is_an_invalid_argument(envoy: g.Gateway) -> None:
    await envoy.apply(g.config())
    async with envoy.channel() as channel:
        method = channel.unary_unary("/org.pytorch.serve.grpc.inference.InferenceAPIsService/Predictions")
        for garbage in (b"\xff" * 40, b"\x0a\xff\xff\xff\xff\x7f", b"\x0a\x05ab"):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await method(garbage, timeout=20)
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_methods_that_nobody_serves_are_unimplemented(envoy: g.Gateway, one: g.Upstream) -> None:
    await envoy.apply(g.config(g.model("digits", [g.version(1, [one.endpoint()])], production=1)))
    request = pb.PredictionsRequest(model_name="digits").SerializeToString()
    async with envoy.channel() as channel:
        for path in (
            "/org.pytorch.serve.grpc.inference.InferenceAPIsService/StreamPredictions2",
            "/org.pytorch.serve.grpc.management.ManagementAPIsService/RegisterModel",
        ):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await channel.unary_unary(path)(request, metadata=(("x-slipway-model", "digits"),), timeout=20)
            assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_a_silent_model_is_deadline_exceeded(envoy: g.Gateway, one: g.Upstream) -> None:
    async def hang(request: Any, context: Any) -> bytes:
        await asyncio.sleep(30)
        return b""

    one.predict = hang
    await envoy.apply(g.config(g.model("digits", [g.version(1, [one.endpoint()], timeout_s=1)], production=1)))
    code, detail = await refusal(envoy, model_name="digits", input={"data": b"x"})
    assert (code, detail) == (grpc.StatusCode.DEADLINE_EXCEEDED, "digits version 1 did not answer within 1 s")


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (400, grpc.StatusCode.INVALID_ARGUMENT),
        (404, grpc.StatusCode.NOT_FOUND),
        (413, grpc.StatusCode.RESOURCE_EXHAUSTED),
        (415, grpc.StatusCode.INVALID_ARGUMENT),
        (422, grpc.StatusCode.INVALID_ARGUMENT),
        (429, grpc.StatusCode.RESOURCE_EXHAUSTED),
        (500, grpc.StatusCode.INTERNAL),
        (503, grpc.StatusCode.UNAVAILABLE),
        (504, grpc.StatusCode.DEADLINE_EXCEEDED),
    ],
)
async def test_an_item_s_error_becomes_the_call_s_status(
    envoy: g.Gateway, one: g.Upstream, status: int, code: grpc.StatusCode
) -> None:
    detail = 'not a PNG: "né"\n\\ 100% 画像'
    body = {"type": "urn:slipway:error:bad-image", "status": status, "title": "t", "detail": detail, "item": 3}

    async def refuse(request: Any, context: Any) -> bytes:
        return orjson.dumps(body)

    one.predict = refuse
    await envoy.apply(g.config(g.model("digits", [g.version(1, [one.endpoint()])], production=1)))
    assert await refusal(envoy, model_name="digits", input={"data": b"x"}) == (code, detail)


async def test_answers_that_only_resemble_an_error_pass(envoy: g.Gateway, one: g.Upstream) -> None:
    answers = [
        b"",
        b'{"type":"urn:slipway:error',
        b'{"type":"urn:slipway:warning","status":400}',
        b' {"type":"urn:slipway:error:x","status":400}',
        b"\x00" * 3 * MIB,
    ]
    expected = b""

    async def answer(request: Any, context: Any) -> bytes:
        return expected

    one.predict = answer
    await envoy.apply(g.config(g.model("digits", [g.version(1, [one.endpoint()])], production=1)))
    for expected in answers:
        assert await predict(envoy, model_name="digits", input={"data": b"x"}) == (expected, "1")


async def test_a_full_queue_is_unavailable_and_other_internal_errors_stay(envoy: g.Gateway, one: g.Upstream) -> None:
    message = 'Model "digits" has no worker to serve inference request. Please use scale workers API to add workers.'

    async def fail(request: Any, context: Any) -> bytes:
        await context.abort(grpc.StatusCode.INTERNAL, message)
        raise AssertionError

    one.predict = fail
    await envoy.apply(g.config(g.model("digits", [g.version(1, [one.endpoint()])], production=1)))
    full = await refusal(envoy, model_name="digits", input={"data": b"x"})
    assert full == (grpc.StatusCode.UNAVAILABLE, "the queue is full or no worker is up; try again")
    message = "Prediction failed\norg.pytorch.serve.http.InternalServerException"
    other = await refusal(envoy, model_name="digits", input={"data": b"x"})
    assert other == (grpc.StatusCode.INTERNAL, "Prediction failed")


async def test_ten_megabytes_go_both_ways(envoy: g.Gateway, one: g.Upstream) -> None:
    async def echo(request: Any, context: Any) -> bytes:
        return request.input["data"]

    one.predict = echo
    await envoy.apply(g.config(g.model("digits", [g.version(1, [one.endpoint()])], production=1)))
    data = bytes(range(256)) * (10 * MIB // 256)
    answer, _ = await predict(envoy, model_name="digits", input={"data": data})
    assert answer == data


async def test_a_stream_passes_part_by_part(envoy: g.Gateway, one: g.Upstream) -> None:
    await envoy.apply(g.config(g.model("digits", [g.version(1, [one.endpoint()])], production=1)))
    async with envoy.channel() as channel:
        call = pb_grpc.InferenceAPIsServiceStub(channel).StreamPredictions(
            pb.PredictionsRequest(model_name="digits", input={"data": b"x"}), timeout=20
        )
        assert [part.prediction async for part in call] == [b"a", b"b", b"c"]


async def test_rest_and_grpc_follow_the_same_weights(envoy: g.Gateway, one: g.Upstream, two: g.Upstream) -> None:
    versions = [g.version(1, [one.endpoint()]), g.version(2, [two.endpoint()])]
    await envoy.apply(g.config(g.model("digits", versions, production={1: 8_000, 2: 2_000})))
    async with envoy.channel() as channel:
        stub = pb_grpc.InferenceAPIsServiceStub(channel)
        for _ in range(500):
            await stub.Predictions(pb.PredictionsRequest(model_name="digits", input={"data": b"x"}), timeout=20)
    assert 0.11 < len(two.calls) / 500 < 0.29


# --- the Open Inference Protocol ----------------------------------------------------------------------------------


def answer_tensors(seen: g.Seen) -> g.Reply:
    """Doubles the one FP32 input, in the form that was asked for."""
    length = int(seen.headers["inference-header-content-length"])
    header = json.loads(seen.body[:length])
    tensor = header["inputs"][0]
    assert tensor["parameters"]["binary_data_size"] == len(seen.body) - length
    values = [2 * value for (value,) in struct.iter_unpack("<f", seen.body[length:])]
    output: dict[str, Any] = {"name": "y", "datatype": "FP32", "shape": tensor["shape"]}
    answer = {"model_name": "digits", "model_version": "1", "id": header.get("id", ""), "outputs": [output]}
    if header.get("parameters", {}).get("binary_data_output"):
        raw = struct.pack(f"<{len(values)}f", *values)
        output["parameters"] = {"binary_data_size": len(raw)}
        text = json.dumps(answer).encode()
        return 200, {"inference-header-content-length": str(len(text))}, text + raw
    output["data"] = values
    return 200, {"content-type": "application/json"}, json.dumps(answer).encode()


async def test_the_open_inference_service_answers_end_to_end(envoy: g.Gateway, one: g.Upstream) -> None:
    async def answer(seen: g.Seen) -> g.Reply:
        return answer_tensors(seen)

    one.answer = answer
    await envoy.apply(g.config(g.model("digits", [g.version(1, [one.endpoint()]), g.version(2)], production=1)))
    server = await oip.serve(port=envoy.settings.oip_port, gateway=envoy.url)
    try:
        async with envoy.channel() as channel:
            stub = oip_grpc.GRPCInferenceServiceStub(channel)
            assert (await stub.ServerLive(oip_pb.ServerLiveRequest(), timeout=20)).live
            assert (await stub.ServerReady(oip_pb.ServerReadyRequest(), timeout=20)).ready
            assert "binary_tensor_data" in (await stub.ServerMetadata(oip_pb.ServerMetadataRequest())).extensions
            assert (await stub.ModelReady(oip_pb.ModelReadyRequest(name="digits"), timeout=20)).ready
            assert not (await stub.ModelReady(oip_pb.ModelReadyRequest(name="digits", version="2"))).ready
            metadata = await stub.ModelMetadata(oip_pb.ModelMetadataRequest(name="digits"), timeout=20)
            assert (metadata.inputs[0].name, list(metadata.inputs[0].shape)) == ("x", [-1, 2])

            request = oip_pb.ModelInferRequest(model_name="digits", id="mine")
            tensor = request.inputs.add(name="x", datatype="FP32", shape=[1, 2])
            tensor.contents.fp32_contents.extend([1.5, 2.5])
            call = stub.ModelInfer(request, timeout=20)
            answered = await call
            assert list(answered.outputs[0].contents.fp32_contents) == [3.0, 5.0]
            assert (answered.id, list(answered.outputs[0].shape)) == ("mine", [1, 2])
            assert dict(await call.trailing_metadata())["slipway-model-version"] == "1"

            raw = oip_pb.ModelInferRequest(model_name="digits", raw_input_contents=[struct.pack("<2f", 1, 2)])
            raw.inputs.add(name="x", datatype="FP32", shape=[1, 2])
            answered = await stub.ModelInfer(raw, timeout=20)
            assert answered.raw_output_contents[0] == struct.pack("<2f", 2, 4)
            assert not answered.outputs[0].HasField("contents")

            for bad, code in [
                (oip_pb.ModelInferRequest(model_name="nope"), grpc.StatusCode.NOT_FOUND),
                (oip_pb.ModelInferRequest(model_name="digits", model_version="7"), grpc.StatusCode.NOT_FOUND),
                (oip_pb.ModelInferRequest(model_name="digits", model_version="2"), grpc.StatusCode.UNAVAILABLE),
                (oip_pb.ModelInferRequest(), grpc.StatusCode.INVALID_ARGUMENT),
            ]:
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await stub.ModelInfer(bad, timeout=20)
                assert caught.value.code() is code, caught.value.details()

            health = await pb_grpc.InferenceAPIsServiceStub(channel).Ping(empty_pb2.Empty(), timeout=20)
            assert json.loads(health.health) == {"status": "Healthy"}
    finally:
        await server.stop(0)


async def test_without_its_companion_the_open_inference_service_is_unavailable(envoy: g.Gateway) -> None:
    await envoy.apply(g.config())
    async with envoy.channel() as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await oip_grpc.GRPCInferenceServiceStub(channel).ServerLive(oip_pb.ServerLiveRequest(), timeout=20)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
