"""A control plane and a gateway without a network: handlers of requests, by method and path."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import httpx
import pytest

from serving.cli import client, main

Handler = Callable[[httpx.Request], httpx.Response]


@dataclass
class World:
    """What answers requests; whatever was not told of is a 404 problem."""

    routes: dict[tuple[str, str], list[Handler]] = field(default_factory=dict[tuple[str, str], list[Handler]])
    requests: list[httpx.Request] = field(default_factory=list[httpx.Request])

    def answer(self, method: str, path: str, *answers: httpx.Response | Handler) -> None:
        """Answers in their order; the last one goes on for ever."""
        self.routes[method, path] = [a if callable(a) else (lambda _, a=a: a) for a in answers]

    def json(self, method: str, path: str, *bodies: object, status: int = 200) -> None:
        self.answer(method, path, *(lambda _, body=body: httpx.Response(status, json=body) for body in bodies))

    def handle(self, request: httpx.Request) -> httpx.Response:
        request.read()
        self.requests.append(request)
        answers = self.routes.get((request.method, request.url.path))
        if answers is None:
            return problem(404, "there is no such thing")
        return (answers.pop(0) if len(answers) > 1 else answers[0])(request)

    def sent(self, method: str, path: str) -> list[httpx.Request]:
        return [each for each in self.requests if (each.method, each.url.path) == (method, path)]


def problem(status: int, detail: str, **extras: object) -> httpx.Response:
    body = {"type": "urn:slipway:error:test", "status": status, "title": "T", "detail": detail, **extras}
    return httpx.Response(status, json=body, headers={"content-type": "application/problem+json"})


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    world = World()
    monkeypatch.setattr(httpx.HTTPTransport, "handle_request", lambda _, request: world.handle(request))
    monkeypatch.setenv("SLIPWAY_CONTROL_URL", "http://control.test")
    monkeypatch.setenv("SLIPWAY_GATEWAY_URL", "http://gateway.test")
    monkeypatch.setenv("SLIPWAY_ACTOR", "ada")
    monkeypatch.delenv("SLIPWAY_DEBUG", raising=False)
    monkeypatch.setattr(client, "RETRY_FOR_S", 0.0)
    monkeypatch.setattr(client, "PAUSE_S", 0.0)
    return world


@dataclass(frozen=True, kw_only=True)
class Result:
    exit_code: int
    stdout: str
    stderr: str


Run = Callable[..., Result]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run ``slipway ARGUMENTS`` in this process, errors rendered as for a person."""

    def run(*arguments: str) -> Result:
        capsys.readouterr()
        code = main.main(list(arguments))
        captured = capsys.readouterr()
        return Result(exit_code=code, stdout=captured.out, stderr=captured.err)

    return run
