from __future__ import annotations

import asyncio
import json
from pathlib import Path

import httpx
import pytest

from serving.agent import control, events
from serving.agent.control import Reporter, Subscriber
from serving.agent.settings import Settings
from serving.domain import wire
from tests.unit.agent.world import World, ref, version


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(
        control_url="http://control", pool="cpu", replica="r1", home=tmp_path, advertise_host="10.0.0.7", cores=4
    )


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "BACK_OFF", control.BackOff(first_s=0.001, cap_s=0.001))


def reporter(settings: Settings, world: World, http: httpx.AsyncClient, told: list[events.Event]) -> Reporter:
    return Reporter(
        settings=settings,
        machine=world.machine,
        http=http,
        submit=told.append,
        agent_url="http://10.0.0.7:1",
        memory_bytes=1,
    )


def ready_world() -> World:
    world = World()
    world.assign(version(1))
    world.make_ready(version(1))
    return world


def test_a_report_states_everything_and_its_answer_reaches_the_machine(settings: Settings) -> None:
    told: list[events.Event] = []
    sent: list[wire.ReplicaReport] = []

    def respond(request: httpx.Request) -> httpx.Response:
        assert (request.method, str(request.url)) == ("PUT", "http://control/v1/replicas/r1")
        sent.append(wire.ReplicaReport.model_validate_json(request.content))
        return httpx.Response(200, json={"generation": 1, "routed": [{"model": "resnet", "version": 1}]})

    async def run() -> None:
        async with httpx.AsyncClient(transport=httpx.MockTransport(respond)) as http:
            await reporter(settings, ready_world(), http, told).report()

    asyncio.run(run())
    (server,) = sent[0].servers
    assert (server.state, server.host, server.rest_port, server.grpc_port) == ("ready", "10.0.0.7", 1, 2)
    assert (sent[0].generation, sent[0].cores, sent[0].draining) == (1, 4, False)
    (acknowledged,) = told
    assert isinstance(acknowledged, events.Acknowledged)
    assert acknowledged.routed == {ref(1)}


def test_reporting_goes_on_when_the_control_plane_fails(settings: Settings) -> None:
    answers: list[httpx.Response | Exception] = [
        httpx.ConnectError("refused"),
        httpx.Response(500),
        httpx.Response(200, text="<html>"),
        httpx.Response(200, json={"generation": 1, "routed": []}),
    ]
    told: list[events.Event] = []

    def respond(_: httpx.Request) -> httpx.Response:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def run() -> None:
        async with httpx.AsyncClient(transport=httpx.MockTransport(respond)) as http:
            running = asyncio.create_task(reporter(settings, ready_world(), http, told).run())
            async with asyncio.timeout(5):
                while not told:
                    await asyncio.sleep(0.001)
            running.cancel()

    asyncio.run(run())
    assert answers == []


def subscribe(settings: Settings, answers: list[httpx.Response | Exception], *, generation: int) -> list[events.Event]:
    told: list[events.Event] = []

    def respond(request: httpx.Request) -> httpx.Response:
        assert request.url.params["generation"] == str(generation)
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def run() -> None:
        async with httpx.AsyncClient(transport=httpx.MockTransport(respond)) as http:
            subscriber = Subscriber(settings=settings, http=http, submit=told.append, generation=generation)
            running = asyncio.create_task(subscriber.run())
            async with asyncio.timeout(5):
                while not told:
                    await asyncio.sleep(0.001)
            running.cancel()

    asyncio.run(run())
    return told


def test_an_assignment_is_on_disk_before_it_is_acted_upon(settings: Settings) -> None:
    assignment = wire.Assignment(pool="cpu", generation=4, versions=[version(1)])
    answers: list[httpx.Response | Exception] = [
        httpx.ConnectError("refused"),
        httpx.Response(503),
        httpx.Response(200, json=json.loads(assignment.model_dump_json())),
    ]
    told = subscribe(settings, answers, generation=3)
    assert told == [events.Assigned(assignment=assignment)]
    assert control.last_assignment(settings) == assignment


def test_a_disk_that_is_full_does_not_keep_an_assignment_from_being_followed(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(control, "keep_assignment", full)
    assignment = wire.Assignment(pool="cpu", generation=4, versions=[])
    told = subscribe(settings, [httpx.Response(200, json=json.loads(assignment.model_dump_json()))], generation=-1)
    assert told == [events.Assigned(assignment=assignment)]


def test_the_assignment_of_another_pool_is_not_taken_over(settings: Settings) -> None:
    control.keep_assignment(settings.home, wire.Assignment(pool="gpu", generation=1, versions=[]))
    assert control.last_assignment(settings) is None


def test_a_damaged_assignment_on_disk_is_none(settings: Settings) -> None:
    (settings.home / control.ASSIGNMENT_FILE).write_text('{"pool": "cpu"')
    assert control.last_assignment(settings) is None
