"""Whatever bytes a client sends, it gets a client's error: a 500 would say that the model is broken."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from handlers import errors, images, items, oip

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
FIELD = st.sampled_from(["FP32", "BYTES", "INT8", "BOOL", "x", "name", -1, 0, 1, 2, 2**70, True, None]) | JSON
TENSOR = st.fixed_dictionaries(
    {},
    optional={
        "name": FIELD,
        "datatype": FIELD,
        "shape": FIELD | st.lists(FIELD, max_size=3),
        "data": FIELD | st.lists(FIELD, max_size=3),
        "parameters": FIELD | st.fixed_dictionaries({"binary_data_size": FIELD}),
    },
)
DOCUMENT = JSON | st.fixed_dictionaries(
    {"inputs": JSON | st.lists(TENSOR, max_size=2)},
    optional={"outputs": JSON | st.lists(TENSOR, max_size=2), "parameters": JSON, "id": JSON},
)


@settings(max_examples=400, deadline=None, derandomize=True)
@given(document=DOCUMENT, tail=st.binary(max_size=16))
def test_any_json_is_a_protocol_request_or_a_400(document: Any, tail: bytes) -> None:
    head = json.dumps(document, allow_nan=False, default=str).encode() if _finite(document) else b"NaN"
    headers = {"Host": "x", oip.PROTOCOL_HEADER: oip.PROTOCOL, oip.LENGTH_HEADER: str(len(head))}
    item = items.of_request({"body": head + tail}, headers | {"body": {"content-type": "application/octet-stream"}})
    try:
        assert oip.parse(item).rows
    except errors.HandlerError as error:
        assert error.status == 400


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    body=st.binary(max_size=40) | JSON,
    content_type=st.sampled_from(["", "text/plain", "application/json", "image/png"]),
)
@pytest.mark.parametrize("read", [items.Item.text, items.Item.body, items.Item.fields, items.instances])
def test_any_body_is_read_or_a_400(read: Callable[[items.Item], Any], body: Any, content_type: str) -> None:
    item = items.of_request({"body": body}, {"Host": "x", "body": {"content-type": content_type}})
    try:
        read(item)
    except errors.HandlerError as error:
        assert error.status == 400


@pytest.mark.parametrize("form", ["JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF"])
def test_a_damaged_image_is_decoded_or_refused_with_a_4xx(form: str) -> None:
    chance = random.Random(form)
    stream = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 256, (16, 16, 3), dtype=np.uint8)
    Image.fromarray(noise).save(stream, form)
    whole = stream.getvalue()
    for _ in range(300):
        damaged = bytearray(whole[: chance.randint(1, len(whole))] if chance.random() < 0.3 else whole)
        for _ in range(chance.randint(1, 6)):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        try:
            pixels = images.decode(bytes(damaged), max_pixels=1_000_000)
            assert pixels.dtype == np.uint8
            assert pixels.ndim == 3
        except errors.HandlerError as error:
            assert error.status in (400, 413, 415)


def _finite(value: Any) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except ValueError:
        return False
    return True
