"""REST and the Open Inference Protocol's REST through a real Envoy."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket

import httpx
import pytest

from tests.support import gateway as g
from tests.support.stack import free_port

pytestmark = [pytest.mark.integration, pytest.mark.anyio]

MIB = 1024 * 1024


async def test_every_address_of_a_model_leads_to_the_version_that_it_means(
    envoy: g.Gateway, one: g.Upstream, two: g.Upstream
) -> None:
    versions = [g.version(1, [one.endpoint()]), g.version(2, [two.endpoint()])]
    await envoy.apply(g.config(g.model("digits", versions, production=1, staging=2)))
    asked = {
        ("/predictions/digits", ""): 1,
        ("/predictions/digits", "production"): 1,
        ("/predictions/digits", "staging"): 2,
        ("/predictions/digits/1", ""): 1,
        ("/predictions/digits/2", ""): 2,
        ("/predictions/digits/2", "production"): 2,
        ("/v2/models/digits/infer", ""): 1,
        ("/v2/models/digits/infer", "staging"): 2,
        ("/v2/models/digits/versions/2/infer", ""): 2,
    }
    async with g.client(envoy) as client:
        for (path, stage), expected in asked.items():
            answer = await client.post(path, content=b"x", headers={"slipway-stage": stage} if stage else {})
            assert answer.status_code == 200, (path, stage, answer.text)
            assert answer.headers["slipway-model-version"] == str(expected), (path, stage)
            assert answer.json() == {"version": expected, "bytes": 1}
    assert {seen.path for seen in one.seen} == {"/predictions/digits/1"}
    assert {seen.path for seen in two.seen} == {"/predictions/digits/2"}


async def test_open_inference_requests_say_so_to_the_handler_and_others_cannot(
    envoy: g.Gateway, one: g.Upstream
) -> None:
    await envoy.apply(g.config(g.model("digits", [g.version(1, [one.endpoint()])], production=1)))
    async with g.client(envoy) as client:
        await client.post("/v2/models/digits/infer", content=b"{}", headers={"inference-header-content-length": "2"})
        await client.post("/predictions/digits?top=3", content=b"x", headers={"slipway-protocol": "oip-v2"})
    assert one.seen[0].headers["slipway-protocol"] == "oip-v2"
    assert one.seen[0].headers["inference-header-content-length"] == "2"
    assert "slipway-protocol" not in one.seen[1].headers
    assert one.seen[1].query == "top=3"


async def test_headers_that_change_what_torchserve_does_never_pass(envoy: g.Gateway, one: g.Upstream) -> None:
    await envoy.apply(g.config(g.model("digits", [g.version(1, [one.endpoint()])], production=1)))
    private = {"describe": "True", "explain": "True", "x-slipway-model": "other", "x-slipway-version": "9"}
    async with g.client(envoy) as client:
        answer = await client.post("/predictions/digits", headers=private | {"x-mine": "kept"})
    assert answer.status_code == 200
    assert not private.keys() & one.seen[0].headers.keys()
    assert one.seen[0].headers["x-mine"] == "kept"


async def test_torchserves_own_marks_do_not_reach_clients(envoy: g.Gateway, one: g.Upstream) -> None:
    async def answer(seen: g.Seen) -> g.Reply:
        return 200, {"content-type": "text/event-stream", "ts_stream_next": "true"}, b"data: {}"

    one.answer = answer
    await envoy.apply(g.config(g.model("digits", [g.version(1, [one.endpoint()])], production=1)))
    async with g.client(envoy) as client:
        headers = (await client.post("/predictions/digits")).headers
    assert headers["content-type"] == "text/event-stream"
    assert "ts_stream_next" not in headers


async def test_an_upload_by_put_is_a_prediction(envoy: g.Gateway, one: g.Upstream) -> None:
    await envoy.apply(g.config(g.model("digits", [g.version(1, [one.endpoint()])], production=1)))
    async with g.client(envoy) as client:
        assert (await client.put("/predictions/digits", content=b"abc")).json()["bytes"] == 3


@pytest.mark.parametrize(
    ("method", "path", "status", "kind"),
    [
        ("POST", "/predictions/nope", 404, "unknown-model"),
        ("POST", "/predictions/digit", 404, "unknown-model"),
        ("POST", "/v2/models/nope/infer", 404, "unknown-model"),
        ("GET", "/v2/models/nope/ready", 404, "unknown-model"),
        ("POST", "/predictions/digits/9", 404, "unknown-version"),
        ("POST", "/predictions/digits/1/x", 404, "unknown-version"),
        ("POST", "/v2/models/digits/versions/9/infer", 404, "unknown-version"),
        ("GET", "/predictions/digits", 405, "method-not-allowed"),
        ("DELETE", "/predictions/digits/1", 405, "method-not-allowed"),
        ("GET", "/v2/models/digits/infer", 405, "method-not-allowed"),
        ("POST", "/v2/models/digits", 405, "method-not-allowed"),
        ("GET", "/models", 404, "unknown-address"),
        ("DELETE", "/models/digits", 404, "unknown-address"),
        ("POST", "/workflows", 404, "unknown-address"),
        ("POST", "/explanations/digits", 404, "unknown-address"),
        ("POST", "/wfpredict/digits", 404, "unknown-address"),
        ("OPTIONS", "/", 404, "unknown-address"),
    ],
)
async def test_whatever_is_not_served_gets_a_problem(
    envoy: g.Gateway, one: g.Upstream, method: str, path: str, status: int, kind: str
) -> None:
    await envoy.apply(g.config(g.model("digits", [g.version(1, [one.endpoint()])], production=1)))
    async with g.client(envoy) as client:
        answer = await client.request(method, path)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert (problem["type"], problem["status"]) == (f"urn:slipway:error:{kind}", status)
    if kind.startswith("unknown-model"):
        assert problem["model"] in path.split("/") and problem["model"] in problem["detail"]
    if kind == "method-not-allowed":
        assert answer.headers["allow"]
    assert not one.seen


async def test_a_model_s_name_cannot_break_out_of_the_error_that_names_it(envoy: g.Gateway) -> None:
    await envoy.apply(g.config())
    async with g.client(envoy) as client:
        answer = await client.post('/predictions/a","status":200,"x')
    assert answer.status_code == 404
    assert answer.json()["status"] == 404
    reader, writer = await asyncio.open_connection("127.0.0.1", envoy.settings.port)
    writer.write(b'POST /predictions/a"\\b HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\nconnection: close\r\n\r\n')
    raw = await asyncio.wait_for(reader.read(), 10)
    writer.close()
    assert json.loads(raw.partition(b"\r\n\r\n")[2])["model"] in ("a%22%5Cb", "a%22")


async def test_unknown_and_empty_stages_are_told_apart(envoy: g.Gateway, one: g.Upstream) -> None:
    await envoy.apply(g.config(g.model("digits", [g.version(1, [one.endpoint()])], production=1)))
    async with g.client(envoy) as client:
        empty = await client.post("/predictions/digits", headers={"slipway-stage": "staging"})
        unknown = await client.post("/v2/models/digits/infer", headers={"slipway-stage": "qa"})
        metadata = await client.get("/v2/models/digits", headers={"slipway-stage": "qa"})
    assert (empty.status_code, empty.json()["type"]) == (404, "urn:slipway:error:nothing-promoted")
    assert (unknown.status_code, unknown.json()["type"]) == (404, "urn:slipway:error:unknown-stage")
    assert unknown.json()["stages"] == ["staging", "production"]
    assert metadata.status_code == 404


async def test_a_version_without_a_ready_replica_answers_503_and_says_when_to_try_again(envoy: g.Gateway) -> None:
    await envoy.apply(g.config(g.model("digits", [g.version(1)], production=1)))
    async with g.client(envoy) as client:
        answer = await client.post("/predictions/digits")
        ready = await client.get("/v2/models/digits/ready")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
    assert answer.headers["slipway-model-version"] == "1"
    problem = answer.json()
    assert (problem["type"], problem["model"], problem["version"]) == ("urn:slipway:error:not-ready", "digits", 1)
    assert (ready.status_code, ready.json()["ready"]) == (503, False)


async def test_a_replica_that_takes_no_connection_is_503_and_its_neighbour_gets_the_request(
    envoy: g.Gateway, one: g.Upstream
) -> None:
    dead = one.endpoint().model_copy(update={"rest_port": free_port(), "grpc_port": free_port(), "replica": "dead"})
    alone = g.version(1, [dead])
    both = g.version(2, [dead, one.endpoint()])
    await envoy.apply(g.config(g.model("digits", [alone, both], production=2)))
    async with g.client(envoy) as client:
        refused = await client.post("/predictions/digits/1", content=b"x")
        answers = [await client.post("/predictions/digits", content=b"x" * 100_000) for _ in range(20)]
    assert (refused.status_code, refused.json()["type"]) == (503, "urn:slipway:error:unreachable")
    assert refused.json()["model"] == "digits"
    assert [answer.status_code for answer in answers] == [200] * 20
    assert len(one.seen) == 20


async def test_a_request_that_may_have_been_worked_on_is_never_sent_twice(envoy: g.Gateway) -> None:
    received = 0

    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal received
        await reader.readuntil(b"\r\n\r\n")
        received += 1
        writer.close()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    endpoint = g.wire.Endpoint(replica="r", host="127.0.0.1", rest_port=port, grpc_port=port)
    await envoy.apply(g.config(g.model("digits", [g.version(1, [endpoint])], production=1)))
    async with g.client(envoy) as client:
        answer = await client.post("/predictions/digits", content=b"x")
    server.close()
    assert (answer.status_code, answer.json()["type"]) == (503, "urn:slipway:error:connection-lost")
    assert received == 1


async def test_a_silent_model_is_504_after_its_own_timeout(envoy: g.Gateway, one: g.Upstream) -> None:
    async def hang(seen: g.Seen) -> g.Reply:
        await asyncio.sleep(30)
        return 200, {}, b""

    one.answer = hang
    await envoy.apply(g.config(g.model("digits", [g.version(1, [one.endpoint()], timeout_s=1)], production=1)))
    async with g.client(envoy) as client:
        answer = await client.post("/predictions/digits", content=b"x")
    assert answer.status_code == 504
    problem = answer.json()
    assert problem["type"] == "urn:slipway:error:timeout"
    assert (problem["model"], problem["version"], problem["timeout_s"]) == ("digits", 1, 1)


async def test_an_answer_that_streams_may_take_longer_than_the_timeout_and_is_not_held_back(envoy: g.Gateway) -> None:
    release = asyncio.Event()

    async def stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\none\r\n")
        await release.wait()
        for _ in range(3):
            await asyncio.sleep(0.6)
            writer.write(b"3\r\ntwo\r\n")
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(stream, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    endpoint = g.wire.Endpoint(replica="r", host="127.0.0.1", rest_port=port, grpc_port=port)
    await envoy.apply(g.config(g.model("digits", [g.version(1, [endpoint], timeout_s=1)], production=1)))
    async with g.client(envoy) as client, client.stream("POST", "/predictions/digits", content=b"x") as answer:
        parts = answer.aiter_bytes()
        assert await anext(parts) == b"one"
        release.set()
        assert b"".join([part async for part in parts]) == b"twotwotwo"
    server.close()


async def test_a_body_over_the_limit_is_413_whether_its_length_is_announced_or_not(
    envoy: g.Gateway, one: g.Upstream
) -> None:
    limit = 100_000
    version = g.version(1, [one.endpoint()], max_request_bytes=limit)
    await envoy.apply(g.config(g.model("digits", [version], production=1)))

    async def parts(size: int):  # type: ignore[no-untyped-def]
        yield b"x" * (size - 1)
        yield b"x"

    async with g.client(envoy) as client:
        fits = await client.post("/predictions/digits", content=b"x" * limit)
        streamed = await client.post("/predictions/digits", content=parts(limit))
        announced = await client.post("/predictions/digits", content=b"x" * (limit + 1))
        counted = await client.post("/predictions/digits", content=parts(limit + 1))
    assert [fits.json()["bytes"], streamed.json()["bytes"]] == [limit, limit]
    for answer in (announced, counted):
        assert answer.status_code == 413
        problem = answer.json()
        assert problem["type"] == "urn:slipway:error:request-too-large"
        assert (problem["model"], problem["version"], problem["limit_bytes"]) == ("digits", 1, limit)
    assert len(one.seen) == 2


async def test_a_client_that_is_cut_off_while_it_sends_far_too_much_finds_its_413(
    envoy: g.Gateway, one: g.Upstream
) -> None:
    version = g.version(1, [one.endpoint()], max_request_bytes=MIB)
    await envoy.apply(g.config(g.model("digits", [version], production=1)))

    def send_then_read() -> bytes:
        with socket.create_connection(("127.0.0.1", envoy.settings.port), timeout=20) as connection:
            # As curl, Go and httpx do: whatever became of the sending, look for an answer.
            with contextlib.suppress(ConnectionError):
                head = f"POST /predictions/digits HTTP/1.1\r\nhost: x\r\ncontent-length: {8 * MIB}\r\n\r\n"
                connection.sendall(head.encode() + b"x" * 8 * MIB)
            return connection.recv(65536)

    assert b" 413 " in (await asyncio.to_thread(send_then_read)).split(b"\r\n")[0]


async def test_weights_split_the_traffic_of_a_stage(envoy: g.Gateway, one: g.Upstream, two: g.Upstream) -> None:
    versions = [g.version(1, [one.endpoint()]), g.version(2, [two.endpoint()])]
    await envoy.apply(g.config(g.model("digits", versions, production={1: 8_000, 2: 2_000})))
    async with g.client(envoy) as client:
        answers = [await client.post("/predictions/digits") for _ in range(500)]
    share = sum(answer.headers["slipway-model-version"] == "2" for answer in answers) / 500
    # Five standard deviations of a fair draw: one failure in a million runs.
    assert 0.11 < share < 0.29
    assert len(one.seen) + len(two.seen) == 500


@pytest.mark.parametrize(
    ("status", "body", "kind", "retry"),
    [
        (
            503,
            '{\n  "code": 503,\n  "type": "ServiceUnavailableException",\n  "message": "Model \\"digits\\" Version 1 '
            'has no worker to serve inference request. Please use scale workers API to add workers."\n}\n',
            "overloaded",
            "2",
        ),
        (
            503,
            '{\n  "code": 503,\n  "type": "InternalServerException",\n  "message": "Prediction failed"\n}\n',
            "prediction-failed",
            None,
        ),
        (413, "", "request-too-large", None),
    ],
)
async def test_torchserve_s_own_errors_are_told_in_the_data_plane_s_words(
    envoy: g.Gateway, one: g.Upstream, status: int, body: str, kind: str, retry: str | None
) -> None:
    async def fail(seen: g.Seen) -> g.Reply:
        return status, {"content-type": "application/json"} if body else {}, body.encode()

    one.answer = fail
    await envoy.apply(g.config(g.model("digits", [g.version(1, [one.endpoint()])], production=1)))
    async with g.client(envoy) as client:
        answer = await client.post("/predictions/digits", content=b"x")
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert (problem["type"], problem["model"], problem["version"]) == (f"urn:slipway:error:{kind}", "digits", 1)
    assert answer.headers.get("retry-after") == retry
    if kind == "request-too-large":
        assert problem["limit_bytes"] == 64 * MIB


async def test_what_a_handler_wrote_passes_untouched(envoy: g.Gateway, one: g.Upstream) -> None:
    written = b'{"type":"urn:slipway:error:bad-image","status":400,"title":"t","detail":"d"}'
    content_type = "application/problem+json"

    async def refuse(seen: g.Seen) -> g.Reply:
        return 400, {"content-type": content_type}, written

    one.answer = refuse
    await envoy.apply(g.config(g.model("digits", [g.version(1, [one.endpoint()])], production=1)))
    async with g.client(envoy) as client:
        answer = await client.post("/predictions/digits", content=b"x")
        content_type, written = "application/json", b'{"code": 7, "mine": true}'
        own = await client.post("/predictions/digits", content=b"x")
    assert (answer.status_code, answer.json()["detail"]) == (400, "d")
    assert (own.status_code, own.content, own.headers["content-type"]) == (400, written, "application/json")


async def test_metadata_and_readiness_come_from_the_configuration(envoy: g.Gateway, one: g.Upstream) -> None:
    versions = [g.version(1, [one.endpoint()]), g.version(2)]
    await envoy.apply(g.config(g.model("digits", versions, production=1, staging={1: 5_000, 2: 5_000})))
    async with g.client(envoy) as client:
        metadata = await client.get("/v2/models/digits")
        assert metadata.json()["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 2]}]
        assert metadata.headers["slipway-model-version"] == "1"
        assert (await client.get("/v2/models/digits/versions/2")).json()["versions"] == ["2"]
        assert (await client.get("/v2/models/digits/ready")).json() == {"name": "digits", "ready": True}
        assert (await client.get("/v2/models/digits/versions/2/ready")).status_code == 503
        # Half of staging's requests would find no replica.
        assert (await client.get("/v2/models/digits/ready", headers={"slipway-stage": "staging"})).status_code == 503
        assert (await client.get("/v2/health/live")).json() == {"live": True}
        assert (await client.get("/v2/health/ready")).json() == {"ready": True}
        assert (await client.get("/v2")).json()["name"] == "slipway"


async def test_a_gateway_that_never_had_a_configuration_is_live_and_not_ready(envoy: g.Gateway) -> None:
    async with g.client(envoy) as client:
        assert (await client.get("/v2/health/live")).status_code == 200
        ready = await client.get("/v2/health/ready")
        assert (ready.status_code, ready.json()["type"]) == (503, "urn:slipway:error:not-configured")


async def test_two_gateways_cannot_take_the_same_port(envoy: g.Gateway) -> None:
    with pytest.raises(AssertionError, match="Address already in use"):
        async with g.running_gateway(port=envoy.settings.port):
            pass


async def test_connections_are_kept_and_http2_works_without_an_upgrade(envoy: g.Gateway, one: g.Upstream) -> None:
    await envoy.apply(g.config(g.model("digits", [g.version(1, [one.endpoint()])], production=1)))
    async with g.client(envoy) as client:
        first, second = [await client.post("/predictions/digits") for _ in range(2)]
    assert "connection" not in first.headers and second.http_version == "HTTP/1.1"
    assert isinstance(first, httpx.Response)
