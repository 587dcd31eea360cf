"""Tensors of the Open Inference Protocol between their shapes: protobuf, JSON, and raw bytes behind a JSON header.

Raw bytes are row-major and little-endian; an element of BYTES stands behind its length, 4 bytes.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from serving.gateway import errors
from serving.protocol import open_inference_pb2 as pb

# datatype → (field of InferTensorContents, struct code of one element)
_LAYOUT = {
    "BOOL": ("bool_contents", "?"),
    "INT8": ("int_contents", "b"),
    "INT16": ("int_contents", "h"),
    "INT32": ("int_contents", "i"),
    "INT64": ("int64_contents", "q"),
    "UINT8": ("uint_contents", "B"),
    "UINT16": ("uint_contents", "H"),
    "UINT32": ("uint_contents", "I"),
    "UINT64": ("uint64_contents", "Q"),
    "FP32": ("fp32_contents", "f"),
    "FP64": ("fp64_contents", "d"),
    "BYTES": ("bytes_contents", ""),
}
# FP16 and BF16 have no field: they travel raw only.


@dataclass(frozen=True, kw_only=True)
class Body:
    """An inference request or answer over HTTP: a JSON header, then raw tensors."""

    header: dict[str, Any]
    raw: bytes

    def encode(self) -> tuple[bytes, int]:
        """The body, and the length of its JSON part (``inference-header-content-length``)."""
        text = orjson.dumps(self.header)
        return text + self.raw, len(text)


def request_body(request: pb.ModelInferRequest) -> Body:
    """A gRPC request as the REST request that means the same.

    Every input goes raw, which is exact and spares a large tensor the way through JSON; outputs are asked for in the
    form in which the inputs came.

    Raises:
        TensorError: raw inputs that do not match, or contents outside their datatype.
    """
    is_raw = len(request.raw_input_contents) > 0
    if is_raw and len(request.raw_input_contents) != len(request.inputs):
        raise errors.TensorError(
            f"there are {len(request.raw_input_contents)} raw_input_contents for {len(request.inputs)} inputs; "
            "send one for each, or none"
        )
    inputs: list[dict[str, Any]] = []
    parts: list[bytes] = []
    for index, tensor in enumerate(request.inputs):
        if is_raw and tensor.HasField("contents"):
            raise errors.TensorError(f"input {tensor.name} has contents and raw_input_contents; send only one")
        part = request.raw_input_contents[index] if is_raw else to_raw(tensor)
        size = {"binary_data_size": len(part)}
        inputs.append(
            {
                "name": tensor.name,
                "datatype": tensor.datatype,
                "shape": list(tensor.shape),
                "parameters": parameters(tensor.parameters) | size,
            }
        )
        parts.append(part)
    header: dict[str, Any] = {"inputs": inputs}
    if request.id:
        header["id"] = request.id
    if request.outputs:
        header["outputs"] = [
            {"name": output.name, "parameters": parameters(output.parameters) | {"binary_data": is_raw}}
            for output in request.outputs
        ]
    asked = parameters(request.parameters)
    if is_raw:
        asked["binary_data_output"] = True
    if asked:
        header["parameters"] = asked
    return Body(header=header, raw=b"".join(parts))


def response(content: bytes, *, header_length: int | None) -> pb.ModelInferResponse:
    """A REST answer as the gRPC answer that means the same; raw as soon as one output came raw.

    Args:
        header_length: of the JSON part; ``None``: the whole is JSON.

    Raises:
        TensorError: the answer is not one of the protocol.
    """
    try:
        document = orjson.loads(content if header_length is None else content[:header_length])
        answer = pb.ModelInferResponse(
            model_name=str(document.get("model_name", "")),
            model_version=str(document.get("model_version", "")),
            id=str(document.get("id", "")),
        )
        set_parameters(answer.parameters, document.get("parameters") or {})
        at = len(content) if header_length is None else header_length
        raws: list[bytes | None] = []
        for output in document["outputs"]:
            given = dict(output.get("parameters") or {})
            size = given.pop("binary_data_size", None)
            tensor = answer.outputs.add(name=output["name"], datatype=output["datatype"], shape=output["shape"])
            set_parameters(tensor.parameters, given)
            if size is not None:
                if at + size > len(content):
                    raise errors.TensorError(f"output {output['name']} is shorter than its binary_data_size {size}")
                raws.append(content[at : at + size])
                at += size
            else:
                raws.append(None)
                _fill(tensor, output["data"])
    except (ValueError, KeyError, TypeError, AttributeError, struct.error, OverflowError) as error:
        raise errors.TensorError(f"the model's answer is not an Open Inference Protocol answer: {error!r}") from error
    if any(raw is not None for raw in raws):
        for tensor, raw in zip(answer.outputs, raws, strict=True):
            answer.raw_output_contents.append(to_raw(tensor) if raw is None else raw)
            tensor.ClearField("contents")
    return answer


def to_raw(tensor: Any) -> bytes:
    """A tensor's contents as raw bytes.

    Raises:
        TensorError: the datatype has no field in a message, or an element does not fit it.
    """
    layout = _LAYOUT.get(tensor.datatype)
    if layout is None:
        raise errors.TensorError(f"{tensor.name}: a tensor of datatype {tensor.datatype!r} has to be sent raw")
    field, code = layout
    values = getattr(tensor.contents, field)
    if tensor.datatype == "BYTES":
        return b"".join(struct.pack("<I", len(value)) + value for value in values)
    if tensor.datatype == "BOOL":
        return bytes(values)
    try:
        packed = array(code, values)
    except OverflowError as error:
        raise errors.TensorError(f"{tensor.name}: {error} in a tensor of datatype {tensor.datatype}") from error
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def parameters(given: Any) -> dict[str, Any]:
    """Parameters of a message as JSON values."""
    return {
        name: getattr(value, value.WhichOneof("parameter_choice") or "string_param") for name, value in given.items()
    }


def set_parameters(target: Any, values: dict[str, Any]) -> None:
    """JSON values as parameters of a message."""
    for name, value in values.items():
        match value:
            case bool():
                target[name].bool_param = value
            case int():
                target[name].int64_param = value
            case float():
                target[name].double_param = value
            case _:
                target[name].string_param = value if isinstance(value, str) else orjson.dumps(value).decode()


def _fill(tensor: pb.ModelInferResponse.InferOutputTensor, data: Any) -> None:
    layout = _LAYOUT.get(tensor.datatype)
    if layout is None:
        raise errors.TensorError(f"output {tensor.name} of datatype {tensor.datatype} has to come raw")
    values: Sequence[Any] = list(_flat(data))
    if tensor.datatype == "BYTES":
        values = [value.encode() if isinstance(value, str) else orjson.dumps(value) for value in values]
    getattr(tensor.contents, layout[0]).extend(values)


def _flat(data: Any) -> Iterable[Any]:
    """JSON data may be nested or flat."""
    if isinstance(data, list):
        for item in data:  # pyright: ignore[reportUnknownVariableType]
            yield from _flat(item)
    else:
        yield data
