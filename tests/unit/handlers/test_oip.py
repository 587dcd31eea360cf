from __future__ import annotations

import json
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from handlers import errors, items, oip

MakeItem = Callable[..., items.Item]


def request(item: MakeItem, document: Any, tail: bytes = b"") -> items.Item:
    head = json.dumps(document).encode()
    extra = {"inference_header_content_length": str(len(head))} if tail else {}
    return item(
        head + tail, "application/octet-stream" if tail else "application/json", slipway_protocol="oip-v2", **extra
    )


def tensor(datatype: Any, shape: list[int], **more: Any) -> dict[str, Any]:
    return {"name": "x", "datatype": datatype, "shape": shape, **more}


def test_only_the_gateways_header_makes_a_request_one_of_this_protocol(item: MakeItem) -> None:
    assert oip.is_request(item(b"{}", "application/json", slipway_protocol="oip-v2"))
    assert not oip.is_request(item(b"{}", "application/json"))


def test_rows_of_a_json_tensor_become_items_flat_or_nested(item: MakeItem) -> None:
    for data in ([1, 2, 3, 4], [[1, 2], [3, 4]]):
        parsed = oip.parse(request(item, {"id": "a", "inputs": [tensor("FP32", [2, 2], data=data)]}))
        assert parsed.id == "a"
        assert [row.tensors["x"].tolist() for row in parsed.rows] == [[1, 2], [3, 4]]
        assert parsed.rows[0].tensors["x"].dtype == np.float32


def test_binary_tensors_follow_the_json_one_after_the_other(item: MakeItem) -> None:
    numbers = np.array([[1, 2], [3, 4]], dtype="<i8").tobytes()
    texts = b"".join(struct.pack("<I", len(text)) + text for text in (b"one", b"\xff\x00"))
    inputs = [
        tensor("INT64", [2, 2], parameters={"binary_data_size": len(numbers)}),
        {"name": "y", "datatype": "BYTES", "shape": [2], "parameters": {"binary_data_size": len(texts)}},
    ]
    parsed = oip.parse(request(item, {"inputs": inputs}, numbers + texts))
    assert [row.tensors["x"].tolist() for row in parsed.rows] == [[1, 2], [3, 4]]
    assert [row.tensors["y"] for row in parsed.rows] == [b"one", b"\xff\x00"]


@pytest.mark.parametrize("name", list(oip.DATATYPES))
def test_every_datatype_goes_in_and_comes_out_in_json_and_binary(name: str, item: MakeItem) -> None:
    given = np.array([0, 1], dtype=oip.DATATYPES[name])
    for binary in (False, True):
        body, length = oip.render(
            oip.Request(rows=[], binary=binary),
            {"x": given.astype(given.dtype.newbyteorder("="))},
            model="m",
            version=2,
        )
        document = json.loads(body[:length])
        (output,) = document["outputs"]
        assert (output["datatype"], output["shape"]) == (name, [2])
        (rows) = oip.parse(request(item, {"inputs": [output]}, body[length:] if length else b"")).rows
        assert [row.tensors["x"].item() for row in rows] == given.tolist()
        assert (length is not None) == binary


def test_an_answer_names_request_model_and_version(item: MakeItem) -> None:
    body, length = oip.render(oip.Request(rows=[], id="q"), {"t": ["a", b"\xc3\xa9"]}, model="m", version=2)
    assert length is None
    assert json.loads(body) == {
        "model_name": "m", "model_version": "2", "id": "q",
        "outputs": [{"name": "t", "datatype": "BYTES", "shape": [2], "data": ["a", "é"]}],
    }  # fmt: skip


def test_outputs_are_those_that_were_asked_for_in_the_form_that_was(item: MakeItem) -> None:
    wanted = [{"name": "b", "parameters": {"binary_data": True}}, {"name": "a"}]
    parsed = oip.parse(request(item, {"inputs": [tensor("INT8", [1], data=[1])], "outputs": wanted}))
    outputs = {name: np.array([1], dtype=np.int16) for name in "abc"}
    body, length = oip.render(parsed, outputs, model="m", version=1)
    assert [entry["name"] for entry in json.loads(body[:length])["outputs"]] == ["b", "a"]
    assert body[length:] == b"\x01\x00"
    with pytest.raises(errors.InvalidInput, match="no output b; it has a"):
        oip.render(parsed, {"a": outputs["a"]}, model="m", version=1)


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ([], "JSON object"),
        ({}, '"inputs"'),
        ({"inputs": []}, '"inputs"'),
        ({"inputs": [5]}, r"inputs\[0\]"),
        ({"inputs": [{"datatype": "FP32", "shape": [1], "data": [1]}]}, "name"),
        ({"inputs": [tensor("FLOAT", [1], data=[1])]}, "datatype"),
        ({"inputs": [tensor([], [1], data=[1])]}, "datatype"),
        ({"inputs": [tensor("FP32", [-1], data=[1])]}, "shape"),
        ({"inputs": [tensor("FP32", [True], data=[1])]}, "shape"),
        ({"inputs": [tensor("FP32", [2], data=[1])]}, "2 elements"),
        ({"inputs": [tensor("FP32", [1])]}, "data"),
        ({"inputs": [tensor("FP32", [1], data=["x"])]}, "numbers"),
        ({"inputs": [tensor("UINT8", [1], data=[300])]}, "UINT8"),
        ({"inputs": [tensor("INT32", [1], data=[10**30])]}, "INT32"),
        ({"inputs": [tensor("BYTES", [1], data=[5])]}, "strings"),
        ({"inputs": [tensor("FP32", [0], data=[])]}, "0 rows"),
        ({"inputs": [tensor("FP32", [10**12, 10**12], data=[1])]}, "elements"),
        ({"inputs": [tensor("FP32", [1], parameters={"binary_data_size": 4})]}, "bytes"),
        ({"inputs": [tensor("FP32", [1], parameters={"binary_data_size": "4"})]}, "bytes"),
        ({"inputs": [tensor("FP32", [2000], data=[1] * 2000)]}, "1024"),
        ({"inputs": [tensor("FP32", [1], data=[1]), {**tensor("FP32", [2], data=[1, 2]), "name": "y"}]}, "rows"),
        ({"inputs": [tensor("FP32", [1], data=[1])], "outputs": "all"}, '"outputs"'),
        ({"inputs": [tensor("FP32", [1], data=[1])], "outputs": [{}]}, r"outputs\[0\]"),
        ({"inputs": [tensor("FP32", [1], data=[1])], "parameters": 5}, "parameters"),
    ],
)
def test_a_wrong_request_is_a_400_that_names_the_field(document: Any, words: str, item: MakeItem) -> None:
    with pytest.raises(errors.InvalidInput, match=words):
        oip.parse(request(item, document))


@pytest.mark.parametrize(
    ("size", "tail", "words"),
    [(4, b"12345678", "account for 4"), (8, b"1234", "follow"), (3, b"123", "takes 4 bytes")],
)
def test_binary_data_of_a_wrong_length_is_a_400(size: int, tail: bytes, words: str, item: MakeItem) -> None:
    inputs = [tensor("FP32", [1], parameters={"binary_data_size": size})]
    with pytest.raises(errors.InvalidInput, match=words):
        oip.parse(request(item, {"inputs": inputs}, tail))


@pytest.mark.parametrize("tail", [b"\x05\x00", b"\x05\x00\x00\x00ab", b"\x01\x00\x00\x00a\x01\x00\x00\x00b"])
def test_binary_texts_that_are_cut_off_or_too_many_are_a_400(tail: bytes, item: MakeItem) -> None:
    inputs = [tensor("BYTES", [1], parameters={"binary_data_size": len(tail)})]
    with pytest.raises(errors.InvalidInput, match=r"BYTES|elements"):
        oip.parse(request(item, {"inputs": inputs}, tail))


@pytest.mark.parametrize("length", ["x", "-1", "100000"])
def test_a_wrong_header_length_is_a_400(length: str, item: MakeItem) -> None:
    with pytest.raises(errors.InvalidInput, match="inference-header-content-length"):
        oip.parse(item(b"{}", "application/octet-stream", inference_header_content_length=length))
