"""One configuration after another, under traffic and through faults."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import httpx
import pytest

from serving.gateway import bootstrap, drain, errors, explaining, xds
from serving.protocol import inference_pb2 as pb
from serving.protocol import inference_pb2_grpc as pb_grpc
from tests.support import gateway as g

pytestmark = [pytest.mark.integration, pytest.mark.anyio]

RATE = 100
SWITCH_S = 1.0


class Traffic:
    """Steady requests; every answer as (sent at, version)."""

    def __init__(self) -> None:
        self.answers: list[tuple[float, str]] = []
        self.failures: list[str] = []

    @contextlib.asynccontextmanager
    async def flowing(self, send: Callable[[], Awaitable[str]], *, rate: float = RATE) -> AsyncIterator[None]:
        stop = asyncio.Event()
        calls: set[asyncio.Task[None]] = set()

        async def one() -> None:
            sent_at = time.monotonic()
            try:
                self.answers.append((sent_at, await send()))
            except Exception as error:
                self.failures.append(repr(error))

        async def all_of_them() -> None:
            while not stop.is_set():
                call = asyncio.create_task(one())
                calls.add(call)
                call.add_done_callback(calls.discard)
                await asyncio.sleep(1 / rate)

        loop = asyncio.create_task(all_of_them())
        try:
            yield
        finally:
            stop.set()
            await loop
            await asyncio.gather(*calls)

    async def grows(self, count: int = 30) -> None:
        before = len(self.answers)
        await g.eventually(lambda: len(self.answers) >= before + count, what="traffic to flow")


async def test_switching_back_and_forth_under_load_loses_nothing_and_leaves_no_stragglers(
    envoy: g.Gateway, one: g.Upstream, two: g.Upstream
) -> None:
    first, second = g.version(1, [one.endpoint()]), g.version(2, [two.endpoint()])
    await envoy.apply(g.config(g.model("digits", [first], production=1)))
    rest, rpc = Traffic(), Traffic()
    switches: list[tuple[float, str]] = []
    async with g.client(envoy) as client, envoy.channel() as channel:
        stub = pb_grpc.InferenceAPIsServiceStub(channel)

        async def by_rest() -> str:
            answer = await client.post("/predictions/digits", content=b"x" * 1000)
            answer.raise_for_status()
            return answer.headers["slipway-model-version"]

        async def by_grpc() -> str:
            request = pb.PredictionsRequest(model_name="digits", input={"data": b"x" * 1000})
            return (await stub.Predictions(request, timeout=20)).prediction.decode()

        async with rest.flowing(by_rest), rpc.flowing(by_grpc):
            for version in ("2", "1", "2"):
                # As in a promotion: the new version is added first, shifted to, and the old one taken away at the end.
                await envoy.apply(g.config(g.model("digits", [first, second], production=1 if version == "2" else 2)))
                await rest.grows()
                started = time.monotonic()
                await envoy.apply(g.config(g.model("digits", [first, second], production=int(version))))
                switches.append((time.monotonic(), version))
                assert time.monotonic() - started < SWITCH_S
                await rest.grows()
                only = second if version == "2" else first
                await envoy.apply(g.config(g.model("digits", [only], production=int(version))))
                assert envoy.switch is not None and envoy.admin is not None
                await rest.grows(10)
                envoy.switch.retire(await envoy.admin.facts())
                await rest.grows(10)
    for traffic in (rest, rpc):
        assert traffic.failures == []
        assert {version for _, version in traffic.answers} == {"1", "2"}
        for index, (done_at, version) in enumerate(switches):
            until = switches[index + 1][0] - 2 * SWITCH_S if index + 1 < len(switches) else float("inf")
            after = {answered for sent_at, answered in traffic.answers if done_at <= sent_at < until}
            assert after <= {version}


async def test_a_version_that_is_taken_away_answers_what_it_was_asked_before(
    envoy: g.Gateway, one: g.Upstream, two: g.Upstream
) -> None:
    release = asyncio.Event()

    async def slow(seen: g.Seen) -> g.Reply:
        await release.wait()
        return 200, {}, b"slow"

    one.answer = slow
    assert envoy.switch is not None and envoy.admin is not None
    await envoy.apply(g.config(g.model("digits", [g.version(1, [one.endpoint()])], production=1)))
    async with g.client(envoy) as client:
        waiting = asyncio.create_task(client.post("/predictions/digits", content=b"x"))
        await g.eventually(lambda: one.seen, what="the request to arrive")
        # All at once: the worst that a control plane could ask for.
        await envoy.apply(g.config(g.model("digits", [g.version(2, [two.endpoint()])], production=2)))
        assert (await client.post("/predictions/digits")).headers["slipway-model-version"] == "2"
        facts = await envoy.admin.facts()
        assert facts.active()["digits", 1] == 1
        envoy.switch.retire(facts)
        assert envoy.switch.retired == {"digits@1@rest"}
        release.set()
        assert (await waiting).content == b"slow"
        await g.eventually(lambda: _idle(envoy, "digits", 1), what="nothing in flight")
        envoy.switch.retire(await envoy.admin.facts())
        assert envoy.switch.retired == set()


async def _idle(envoy: g.Gateway, model: str, version: int) -> bool:
    assert envoy.admin is not None
    return not (await envoy.admin.facts()).active().get((model, version))


async def test_replicas_come_and_go_while_requests_are_in_flight(
    envoy: g.Gateway, one: g.Upstream, two: g.Upstream
) -> None:
    two.version = 1
    everywhere = [one.endpoint("a"), two.endpoint("b")]
    await envoy.apply(g.config(g.model("digits", [g.version(1, everywhere)], production=1)))

    async def unhurried(seen: g.Seen) -> g.Reply:
        await asyncio.sleep(0.2)
        return 200, {}, b"{}"

    one.answer = two.answer = unhurried
    traffic = Traffic()
    async with g.client(envoy) as client:

        async def send() -> str:
            answer = await client.post("/predictions/digits", content=b"x" * 2000)
            answer.raise_for_status()
            return answer.headers["slipway-model-version"]

        async with traffic.flowing(send):
            for endpoints in ([one.endpoint("a")], everywhere, [two.endpoint("b")], everywhere):
                await envoy.apply(g.config(g.model("digits", [g.version(1, endpoints)], production=1)))
                await traffic.grows()
    assert traffic.failures == []


async def test_an_envoy_that_comes_back_alone_serves_what_it_served(envoy: g.Gateway, one: g.Upstream) -> None:
    await envoy.apply(g.config(g.model("digits", [g.version(1, [one.endpoint()])], production=1)))
    await envoy.stop(signal.SIGKILL)
    await envoy.launch()
    async with g.client(envoy) as client:
        assert (await client.post("/predictions/digits")).json() == {"version": 1, "bytes": 0}
    await envoy.stop()
    # Also from the configuration alone, as after an upgrade that maps it differently.
    envoy.layout.cds.unlink()
    envoy.layout.rds.unlink()
    await envoy.start()
    async with g.client(envoy) as client:
        assert (await client.post("/predictions/digits")).json() == {"version": 1, "bytes": 0}


async def test_a_configuration_that_envoy_refuses_changes_nothing(envoy: g.Gateway, one: g.Upstream) -> None:
    good = g.config(g.model("digits", [g.version(1, [one.endpoint()])], production=1))
    await envoy.apply(good)
    nowhere = one.endpoint().model_copy(update={"rest_port": 70_000})
    bad = g.config(g.model("digits", [g.version(1, [one.endpoint()]), g.version(2, [nowhere])], production=2))
    with pytest.raises(errors.ConfigurationRefused):
        await envoy.apply(bad)
    reason = await explaining.explain(envoy.settings, xds.snapshot(bad, bootstrap.options(envoy.settings)))
    assert "65535" in reason
    assert await explaining.explain(envoy.settings, xds.snapshot(good, bootstrap.options(envoy.settings))) == ""
    async with g.client(envoy) as client:
        assert (await client.post("/predictions/digits")).json()["version"] == 1
        await envoy.stop()
        await envoy.launch()
        assert (await client.post("/predictions/digits")).json()["version"] == 1
    assert envoy.admin is not None
    assert (await envoy.admin.facts()).applied_revision == good.revision
    # And a good one after it is taken.
    await envoy.apply(g.config(g.model("digits", [g.version(1, [one.endpoint()])], staging=1)))


async def test_an_envoy_that_is_away_is_told_apart_from_one_that_refuses(envoy: g.Gateway) -> None:
    await envoy.stop()
    envoy.admin = None
    async with g.running_gateway() as other:
        await other.stop()
        assert other.switch is not None
        with pytest.raises((errors.EnvoyUnreachable, RuntimeError)):
            await other.switch.apply(xds.snapshot(g.config(), bootstrap.options(other.settings)))


async def test_a_replica_may_report_a_name(envoy: g.Gateway, one: g.Upstream) -> None:
    named = one.endpoint().model_copy(update={"host": "localhost"})
    await envoy.apply(g.config(g.model("digits", [g.version(1, [named])], production=1)))
    async with g.client(envoy) as client:
        assert (await client.post("/predictions/digits")).status_code == 200


async def test_many_models_fit(envoy: g.Gateway, one: g.Upstream) -> None:
    models = [g.model(f"m{n}", [g.version(1, [one.endpoint()])], production=1) for n in range(150)]
    await envoy.apply(g.config(*models))
    async with g.client(envoy) as client:
        assert (await client.post("/predictions/m0")).status_code == 200
        assert (await client.post("/predictions/m149")).status_code == 200


async def test_a_drain_answers_what_is_in_flight_and_sends_clients_elsewhere(envoy: g.Gateway, one: g.Upstream) -> None:
    release = asyncio.Event()

    async def slow(seen: g.Seen) -> g.Reply:
        await release.wait()
        return 200, {}, b"slow"

    one.answer = slow
    await envoy.apply(g.config(g.model("digits", [g.version(1, [one.endpoint()])], production=1)))
    async with g.client(envoy) as client:
        waiting = asyncio.create_task(client.post("/predictions/digits", content=b"x"))
        await g.eventually(lambda: one.seen, what="the request to arrive")
        assert await drain.drain(admin_port=envoy.settings.admin_port, timeout_s=0.2) == 1
        draining = asyncio.create_task(drain.drain(admin_port=envoy.settings.admin_port))
        release.set()
        answer = await waiting
        assert (answer.content, answer.headers["connection"]) == (b"slow", "close")
        assert await draining == 0
    await g.eventually(lambda: _refuses(envoy), what="the listener to close", timeout_s=3 * bootstrap.DRAIN_S)


async def _refuses(envoy: g.Gateway) -> bool:
    try:
        async with g.client(envoy) as client:
            await client.get("/v2/health/live")
    except httpx.ConnectError:
        return True
    return False
