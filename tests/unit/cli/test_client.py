from __future__ import annotations

import httpx
import pytest

from serving.cli import errors
from serving.cli.client import ControlPlane
from tests.unit.cli.conftest import World, problem


@pytest.fixture
def control(world: World) -> ControlPlane:
    return ControlPlane("http://control.test", actor="ada")


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (404, errors.NotFound),
        (409, errors.Conflict),
        (400, errors.Usage),
        (413, errors.Usage),
        (422, errors.Usage),
        (503, errors.Unavailable),
        (500, errors.CliError),
    ],
)
def test_a_problem_becomes_an_error_of_its_kind_with_its_detail(
    world: World, control: ControlPlane, status: int, kind: type[errors.CliError]
) -> None:
    world.answer("GET", "/v1/models", problem(status, "what to do"))
    with pytest.raises(errors.CliError, match="what to do") as caught:
        control.get("/v1/models")
    assert type(caught.value) is kind


def test_a_control_plane_that_does_not_answer_is_named(world: World, control: ControlPlane) -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("Connection refused")

    world.answer("GET", "/v1/models", refuse)
    with pytest.raises(errors.Unavailable, match=r"http://control\.test does not answer .*slipway status"):
        control.get("/v1/models")


def test_a_request_is_repeated_with_the_same_key_while_the_control_plane_restarts(world: World) -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("Connection refused")

    world.answer("POST", "/v1/x", refuse, problem(503, "starting"), httpx.Response(202, json={"id": "ro-1"}))
    answer = ControlPlane("http://control.test", retry_for_s=30).post("/v1/x", {})
    assert answer == {"id": "ro-1"}
    keys = {request.headers["idempotency-key"] for request in world.sent("POST", "/v1/x")}
    assert len(world.sent("POST", "/v1/x")) == 3
    assert len(keys) == 1


def test_an_error_that_waiting_does_not_mend_is_not_repeated(world: World) -> None:
    world.answer("POST", "/v1/x", problem(409, "busy"))
    with pytest.raises(errors.Conflict):
        ControlPlane("http://control.test", retry_for_s=30).post("/v1/x", {})
    assert len(world.requests) == 1


def test_lists_are_read_page_by_page_up_to_the_limit(world: World, control: ControlPlane) -> None:
    following = "/v1/models?limit=2&cursor=b"
    world.json(
        "GET",
        "/v1/models",
        {"items": [{"name": "a"}, {"name": "b"}], "next": following},
        {"items": [{"name": "c"}, {"name": "d"}], "next": None},
    )
    assert [item["name"] for item in control.items("/v1/models", limit=3)] == ["a", "b", "c"]
    assert world.requests[1].url.params["cursor"] == "b"


def test_every_request_says_who_asks(world: World, control: ControlPlane) -> None:
    world.json("GET", "/v1/models", {"items": []})
    control.get("/v1/models")
    assert world.requests[0].headers["slipway-actor"] == "ada"


def test_something_that_is_no_control_plane_is_told(world: World, control: ControlPlane) -> None:
    world.answer("GET", "/v1/models", httpx.Response(200, text="<html>"))
    with pytest.raises(errors.CliError, match="does not speak as a control plane"):
        control.get("/v1/models")
