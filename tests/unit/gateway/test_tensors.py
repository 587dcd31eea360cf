from __future__ import annotations

import json
import struct
from typing import Any

import pytest

from serving.gateway import errors, tensors
from serving.protocol import open_inference_pb2 as pb


def request(datatype: str, field: str, values: list[Any]) -> pb.ModelInferRequest:
    made = pb.ModelInferRequest(model_name="m", id="7")
    tensor = made.inputs.add(name="x", datatype=datatype, shape=[len(values)])
    getattr(tensor.contents, field).extend(values)
    return made


@pytest.mark.parametrize(
    ("datatype", "field", "values", "raw"),
    [
        ("BOOL", "bool_contents", [True, False], b"\x01\x00"),
        ("INT8", "int_contents", [-1, 127], b"\xff\x7f"),
        ("INT16", "int_contents", [-2], b"\xfe\xff"),
        ("INT32", "int_contents", [1], b"\x01\x00\x00\x00"),
        ("INT64", "int64_contents", [-1], b"\xff" * 8),
        ("UINT8", "uint_contents", [255], b"\xff"),
        ("UINT16", "uint_contents", [258], b"\x02\x01"),
        ("UINT32", "uint_contents", [1], b"\x01\x00\x00\x00"),
        ("UINT64", "uint64_contents", [2**64 - 1], b"\xff" * 8),
        ("FP32", "fp32_contents", [1.5], struct.pack("<f", 1.5)),
        ("FP64", "fp64_contents", [0.1], struct.pack("<d", 0.1)),
        ("BYTES", "bytes_contents", [b"ab", b"\xff"], b"\x02\x00\x00\x00ab\x01\x00\x00\x00\xff"),
    ],
)
def test_contents_of_every_datatype_go_as_raw_bytes(datatype: str, field: str, values: list[Any], raw: bytes) -> None:
    body = tensors.request_body(request(datatype, field, values))
    assert body.raw == raw
    assert body.header["inputs"][0]["parameters"] == {"binary_data_size": len(raw)}
    content, length = body.encode()
    assert json.loads(content[:length])["id"] == "7"
    assert content[length:] == raw


def test_outputs_are_asked_for_in_the_form_of_the_inputs() -> None:
    by_contents = tensors.request_body(request("FP32", "fp32_contents", [1.0]))
    assert "parameters" not in by_contents.header
    raw = pb.ModelInferRequest(model_name="m", raw_input_contents=[b"\x00" * 2])
    raw.inputs.add(name="x", datatype="FP16", shape=[1])
    raw.outputs.add(name="y")
    body = tensors.request_body(raw)
    assert body.header["parameters"] == {"binary_data_output": True}
    assert body.header["outputs"] == [{"name": "y", "parameters": {"binary_data": True}}]


@pytest.mark.parametrize(
    ("made", "complaint"),
    [
        (request("INT8", "int_contents", [300]), "INT8"),
        (request("FP16", "fp32_contents", [1.0]), "has to be sent raw"),
        (request("FLOAT", "fp32_contents", [1.0]), "FLOAT"),
        (pb.ModelInferRequest(raw_input_contents=[b"", b""]), "2 raw_input_contents for 0 inputs"),
    ],
)
def test_a_tensor_that_contradicts_itself_is_refused(made: pb.ModelInferRequest, complaint: str) -> None:
    with pytest.raises(errors.TensorError, match=complaint):
        tensors.request_body(made)


def test_raw_and_contents_in_one_request_are_refused() -> None:
    made = request("FP32", "fp32_contents", [1.0])
    made.raw_input_contents.append(b"\x00" * 4)
    with pytest.raises(errors.TensorError, match="send only one"):
        tensors.request_body(made)


def test_a_json_answer_fills_the_contents_nested_or_flat() -> None:
    document = {
        "model_name": "m",
        "model_version": "3",
        "id": "7",
        "parameters": {"fast": True, "n": 3, "t": 0.5, "who": "me"},
        "outputs": [
            {"name": "a", "datatype": "FP32", "shape": [2, 2], "data": [[1, 2], [3, 4]]},
            {"name": "b", "datatype": "BYTES", "shape": [2], "data": ["é", "x"]},
        ],
    }
    answer = tensors.response(json.dumps(document).encode(), header_length=None)
    assert (answer.model_name, answer.model_version, answer.id) == ("m", "3", "7")
    assert list(answer.outputs[0].contents.fp32_contents) == [1, 2, 3, 4]
    assert list(answer.outputs[1].contents.bytes_contents) == ["é".encode(), b"x"]
    assert tensors.parameters(answer.parameters) == document["parameters"]
    assert not answer.raw_output_contents


def test_one_raw_output_makes_all_of_them_raw() -> None:
    document = {
        "outputs": [
            {"name": "a", "datatype": "FP16", "shape": [1], "parameters": {"binary_data_size": 2}},
            {"name": "b", "datatype": "INT64", "shape": [1], "data": [5]},
        ]
    }
    header = json.dumps(document).encode()
    answer = tensors.response(header + b"\x00\x3c", header_length=len(header))
    assert list(answer.raw_output_contents) == [b"\x00\x3c", struct.pack("<q", 5)]
    assert not any(output.HasField("contents") for output in answer.outputs)


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"{}", b'{"outputs": [{"name": "a"}]}', b"\xff"],
)
def test_an_answer_of_another_shape_is_an_error(content: bytes) -> None:
    with pytest.raises(errors.TensorError):
        tensors.response(content, header_length=None)


def test_a_raw_answer_that_was_cut_off_is_an_error() -> None:
    output = {"name": "a", "datatype": "FP32", "shape": [2], "parameters": {"binary_data_size": 8}}
    header = json.dumps({"outputs": [output]}).encode()
    with pytest.raises(errors.TensorError, match="binary_data_size 8"):
        tensors.response(header + b"\x00" * 4, header_length=len(header))
