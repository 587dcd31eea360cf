from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest

from serving.cli import inference
from tests.unit.cli.conftest import Run, World, problem

PNG = b"\x89PNG\r\n\x1a\n rest"
DIGITS = "/predictions/digits"


def answered(body: object, version: int = 3) -> httpx.Response:
    return httpx.Response(200, json=body, headers={"slipway-model-version": str(version)})


def test_an_image_is_sent_with_its_type_and_the_answer_printed_with_its_version(
    world: World, run: Run, tmp_path: Path
) -> None:
    world.answer("POST", DIGITS, answered([{"label": "3", "score": 0.9}]))
    (tmp_path / "three").write_bytes(PNG)
    result = run("predict", "digits", str(tmp_path / "three"), "--output", "json")
    assert result.exit_code == 0
    printed = json.loads(result.stdout)
    assert printed["version"] == 3
    assert printed["output"] == [{"label": "3", "score": 0.9}]
    assert printed["ms"] > 0
    assert world.requests[0].headers["content-type"] == "image/png"
    assert world.requests[0].content == PNG


def test_text_and_json_are_sent_as_they_are(world: World, run: Run) -> None:
    world.answer("POST", "/predictions/echo", answered("hello"))
    assert run("predict", "echo", "--text", "grüße").exit_code == 0
    assert run("predict", "echo", "--json", '{"a": 1}').exit_code == 0
    assert world.requests[0].content == "grüße".encode()
    assert world.requests[0].headers["content-type"] == inference.TEXT
    assert world.requests[1].content == b'{"a": 1}'
    assert world.requests[1].headers["content-type"] == inference.JSON


def test_stage_and_version_say_who_is_asked(world: World, run: Run) -> None:
    world.answer("POST", DIGITS, answered([]))
    world.answer("POST", f"{DIGITS}/7", answered([], version=7))
    run("predict", "digits", "--text", "x", "--stage", "staging")
    run("predict", "digits", "--text", "x", "--version", "7")
    assert world.requests[0].headers["slipway-stage"] == "staging"
    assert world.requests[1].url.path == f"{DIGITS}/7"


@pytest.mark.parametrize(
    ("status", "code"), [(404, 3), (400, 2), (413, 2), (415, 2), (422, 2), (500, 1), (503, 5), (504, 5), (429, 5)]
)
def test_what_the_gateway_refuses_becomes_an_exit_code_and_its_words(
    world: World, run: Run, status: int, code: int
) -> None:
    world.answer("POST", DIGITS, problem(status, "because of that"))
    result = run("predict", "digits", "--text", "x")
    assert result.exit_code == code
    assert result.stderr == "slipway: because of that\n"
    assert result.stdout == ""


@pytest.mark.parametrize(
    "arguments", [(), ("--text", "a", "--json", "1"), ("--json", "{"), ("/no/such/file",), ("--version", "0")]
)
def test_a_request_that_makes_no_sense_is_not_sent(world: World, run: Run, arguments: tuple[str, ...]) -> None:
    assert run("predict", "digits", *arguments).exit_code == 2
    assert world.requests == []


def test_a_gateway_that_does_not_answer_is_named(world: World, run: Run) -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("Connection refused")

    world.answer("POST", DIGITS, refuse)
    result = run("predict", "digits", "--text", "x")
    assert result.exit_code == 5
    assert "http://gateway.test" in result.stderr


def test_nobody_listening_for_grpc_is_unavailable_too(world: World, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLIPWAY_GATEWAY_URL", "http://127.0.0.1:9")
    result = run("predict", "digits", "--text", "x", "--grpc", "--timeout", "5")
    assert result.exit_code == 5


@pytest.mark.parametrize(
    ("name", "body", "expected"),
    [
        ("a", PNG, "image/png"),
        ("misnamed.png", b"\xff\xd8\xff\xe0", "image/jpeg"),
        ("a", b"GIF89a", "image/gif"),
        ("a", b"RIFF\0\0\0\0WEBPVP8 ", "image/webp"),
        ("a.txt", b"plain", inference.TEXT),
        ("a.json", b"{}", "application/json"),
        ("a", b' {"a": 1}', "application/json"),
        ("a", b"words", inference.TEXT),
        ("a", b"\xff\x00\x01", inference.BINARY),
        ("empty", b"", inference.TEXT),
    ],
)
def test_the_type_is_told_by_content_then_name_then_guess(name: str, body: bytes, expected: str) -> None:
    assert inference.content_type(name, body) == expected


@pytest.mark.parametrize(
    ("body", "expected"), [(b'{"a":1}', {"a": 1}), (b"text", "text"), ("ü".encode(), "ü"), (b"\xff", "/w==")]
)
def test_an_answer_is_json_else_text_else_base64(body: bytes, expected: object) -> None:
    assert inference.decoded(body) == expected


def test_a_table_is_a_list_of_like_objects() -> None:
    assert inference.is_table([{"a": 1, "b": "x"}, {"a": 2, "b": "y"}])
    for answer in ([], [{"a": 1}, {"b": 1}], [{"a": [1]}], [1, 2], "text", {"a": 1}, None):
        assert not inference.is_table(answer)


def test_a_content_type_that_no_header_can_carry_is_refused(world: World, run: Run) -> None:
    result = run("predict", "digits", "--text", "x", "--content-type", "a\nb")
    assert result.exit_code == 2
    assert "--content-type" in result.stderr
    assert world.requests == []
