from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import pytest

from handlers import errors, items

MakeItem = Callable[..., items.Item]


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (bytearray(b"hello"), "text/plain"),
        ("hello", "text/plain"),
        (b'"hello"', "application/json"),
        (b'{"text": "hello"}', "application/json"),
        ({"text": "hello"}, "application/json"),
        (b"hello", ""),
        (b'{"text": "hello"}', ""),
    ],
)
def test_a_text_is_read_whatever_form_it_comes_in(body: Any, content_type: str, item: MakeItem) -> None:
    assert item(body, content_type).text() == "hello"


@pytest.mark.parametrize(
    ("body", "content_type", "words"),
    [
        (b"\xff\xfe", "text/plain", "not UTF-8"),
        (b"{bad", "application/json", "no JSON"),
        (b"[1]", "application/json", "type array"),
        (b"1", "application/json", "type number"),
        (b"null", "application/json", "null"),
        (b'{"text": 5}', "application/json", "type object"),
    ],
)
def test_what_is_no_text_is_refused_in_words(body: bytes, content_type: str, words: str, item: MakeItem) -> None:
    with pytest.raises(errors.InvalidInput, match=words):
        item(body, content_type).text()


PIXELS = b"\x89PNG not really"
ENCODED = base64.b64encode(PIXELS).decode()


@pytest.mark.parametrize(
    "value",
    [ENCODED, {"b64": ENCODED}, {"image": ENCODED}, {"image": {"b64": ENCODED}}, f"data:image/png;base64,{ENCODED}"],
)
def test_bytes_may_come_as_base64_in_json(value: Any, item: MakeItem) -> None:
    assert item(value, "application/json").body() == PIXELS


def test_broken_base64_is_refused(item: MakeItem) -> None:
    with pytest.raises(errors.InvalidInput, match="base64"):
        item({"b64": "***"}, "application/json").body()


@pytest.mark.parametrize("name", ["data", "body", "anything"])
def test_a_single_grpc_input_is_the_body_whatever_its_name(name: str) -> None:
    assert items.of_request({name: b"hello"}, {}).text() == "hello"


def test_a_request_without_a_body_is_told_how_to_send_one() -> None:
    form = items.of_request({"a": b"1", "b": b"2"}, {"content-type": "application/x-www-form-urlencoded"})
    with pytest.raises(errors.InvalidInput, match=r"no body.*parts that came: a, b"):
        form.text()


def test_named_grpc_inputs_are_fields() -> None:
    item = items.of_request({"question": b"who?", "context": b"me"}, {})
    assert item.fields() == {"question": b"who?", "context": b"me"}


def test_header_names_are_lower_case_and_parts_descriptions_are_no_headers(item: MakeItem) -> None:
    made = items.of_request({"body": b""}, {"X-Thing": "1", "body": {"content-type": "text/plain; charset=utf-8"}})
    assert made.headers == {"x-thing": "1"}
    assert made.content_type == "text/plain"
