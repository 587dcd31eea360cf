"""The Open Inference Protocol v2 over REST: a request's tensors become rows, the rows' answers become tensors.

Both forms are read and written: JSON, and the binary-data extension, in which the JSON (its length given by the
header ``inference-header-content-length``) is followed by the tensors' bytes, little-endian, rows first; a BYTES
element is preceded by its length as four bytes.

Source: the protocol's specification and its binary tensor data extension, as published by KServe and Triton.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import orjson

from handlers import errors, items

PROTOCOL_HEADER = "slipway-protocol"
PROTOCOL = "oip-v2"
LENGTH_HEADER = "inference-header-content-length"

DATATYPES: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype("bool"),
    **{f"UINT{bits}": np.dtype(f"<u{bits // 8}") for bits in (8, 16, 32, 64)},
    **{f"INT{bits}": np.dtype(f"<i{bits // 8}") for bits in (8, 16, 32, 64)},
    **{f"FP{bits}": np.dtype(f"<f{bits // 8}") for bits in (16, 32, 64)},
}
_NAMES = {dtype.newbyteorder("="): name for name, dtype in DATATYPES.items()}


@dataclass(frozen=True, kw_only=True)
class Request:
    """One inference request.

    Attributes:
        rows: one item for each row of the tensors.
        wanted: output name → whether it is to be binary; empty: all outputs, by ``binary``.
        binary: whether outputs are binary unless said otherwise.
    """

    rows: list[items.Item]
    id: str | None = None
    wanted: Mapping[str, bool] = field(default_factory=dict[str, bool])
    binary: bool = False


def is_request(item: items.Item) -> bool:
    return item.headers.get(PROTOCOL_HEADER) == PROTOCOL


def parse(item: items.Item) -> Request:
    """Read an inference request.

    Raises:
        InvalidInput: names the field that is wrong.
    """
    document, binary = _split(item)
    inputs = document.get("inputs")
    if not isinstance(inputs, list) or not inputs:
        raise errors.InvalidInput('"inputs" must be a list with at least one tensor')
    tensors: dict[str, Any] = {}
    offset = 0
    for index, given in enumerate(inputs):
        name, value, offset = _tensor(given, f"inputs[{index}]", binary, offset)
        tensors[name] = value
    if offset != len(binary):
        raise errors.InvalidInput(f"{len(binary)} bytes follow the JSON, the inputs account for {offset}")
    counts = {name: len(value) for name, value in tensors.items()}
    if len(set(counts.values())) != 1:
        raise errors.InvalidInput(f"the inputs have different numbers of rows: {counts}")
    count = next(iter(counts.values()))
    if not 1 <= count <= items.MAX_ROWS:
        raise errors.InvalidInput(
            f"the inputs have {count} rows; send 1 to {items.MAX_ROWS}", limit_rows=items.MAX_ROWS
        )
    parameters = _mapping(document.get("parameters"), "parameters")
    request_id = document.get("id")
    return Request(
        rows=[_row({name: value[row] for name, value in tensors.items()}, item, parameters) for row in range(count)],
        id=None if request_id is None else str(request_id),
        wanted=_wanted(document.get("outputs"), default=bool(parameters.get("binary_data_output"))),
        binary=bool(parameters.get("binary_data_output")),
    )


def render(request: Request, outputs: Mapping[str, Any], *, model: str, version: int) -> tuple[bytes, int | None]:
    """Write the answer.

    Args:
        outputs: name → numpy array, rows first, or a list of text or bytes (or of lists of those, all as long).

    Returns:
        The body, and the length of its JSON when binary tensors follow (else None).

    Raises:
        InvalidInput: an output was asked for that the model does not have.
    """
    unknown = set(request.wanted) - set(outputs)
    if unknown:
        raise errors.InvalidInput(
            f"the model has no output {', '.join(sorted(unknown))}; it has {', '.join(sorted(outputs))}"
        )
    described: list[dict[str, Any]] = []
    tail = bytearray()
    for name in request.wanted or outputs:
        as_binary = request.wanted.get(name, request.binary)
        entry, data = _output(name, outputs[name], as_binary=as_binary)
        described.append(entry)
        tail += data
    document: dict[str, Any] = {"model_name": model, "model_version": str(version), "outputs": described}
    if request.id is not None:
        document["id"] = request.id
    head = errors.encode_json(document)
    return head + bytes(tail), len(head) if tail else None


def _split(item: items.Item) -> tuple[dict[str, Any], memoryview]:
    length = item.headers.get(LENGTH_HEADER)
    value = item.value
    rest = memoryview(b"")
    if length is not None and isinstance(value, (bytes, bytearray)):
        if not length.isdigit() or int(length) > len(value):
            raise errors.InvalidInput(f"{LENGTH_HEADER} is {length!r}, the body has {len(value)} bytes")
        value, rest = value[: int(length)], memoryview(value)[int(length) :]
    if isinstance(value, (bytes, bytearray, str)):
        try:
            value = orjson.loads(value)
        except orjson.JSONDecodeError as error:
            raise errors.InvalidInput(f"the request is no JSON: {error}") from error
    return _mapping(value, "the request"), rest


def _tensor(given: Any, where: str, binary: memoryview, offset: int) -> tuple[str, Any, int]:
    entry = _mapping(given, where)
    name, datatype, shape = entry.get("name"), entry.get("datatype"), entry.get("shape")
    if not isinstance(name, str) or not name:
        raise errors.InvalidInput(f"{where}.name must be text")
    if not isinstance(datatype, str) or (datatype != "BYTES" and datatype not in DATATYPES):
        raise errors.InvalidInput(f"{where}.datatype is {datatype!r}; known: BYTES, {', '.join(DATATYPES)}")
    if not isinstance(shape, list) or not shape or not all(type(n) is int and n >= 0 for n in shape):
        raise errors.InvalidInput(f"{where}.shape must be a list of whole numbers, rows first; got {shape!r}")
    count = math.prod(shape)
    size = _mapping(entry.get("parameters"), f"{where}.parameters").get("binary_data_size")
    if size is None:
        data = entry.get("data")
        if not isinstance(data, list):
            raise errors.InvalidInput(f"{where}.data must be a list (or parameters.binary_data_size must be given)")
        return name, _from_json(data, datatype, shape, where), offset
    if not isinstance(size, int) or size < 0 or offset + size > len(binary):
        raise errors.InvalidInput(f"{where} wants {size!r} bytes at {offset}, {len(binary)} follow the JSON")
    chunk = binary[offset : offset + size]
    if datatype == "BYTES":
        elements = _strings(chunk, count, where)
        value: Any = elements if len(shape) == 1 else _nest(elements, shape)
    else:
        dtype = DATATYPES[datatype]
        if size != count * dtype.itemsize:
            raise errors.InvalidInput(
                f"{where}: shape {shape} of {datatype} takes {count * dtype.itemsize} bytes, not {size}"
            )
        value = np.frombuffer(chunk, dtype=dtype).reshape(shape)
    return name, value, offset + size


def _from_json(data: list[Any], datatype: str, shape: list[int], where: str) -> Any:
    flat = _flatten(data)
    if len(flat) != math.prod(shape):
        raise errors.InvalidInput(f"{where}: shape {shape} has {math.prod(shape)} elements, data has {len(flat)}")
    if datatype == "BYTES":
        if not all(isinstance(element, str) for element in flat):
            raise errors.InvalidInput(f"{where}: BYTES in JSON are strings (base64 for what is not text)")
        return flat if len(shape) == 1 else _nest(flat, shape)
    if not all(isinstance(element, (int, float)) for element in flat):
        raise errors.InvalidInput(f"{where}: {datatype} takes numbers only")
    try:
        return np.array(flat, dtype=DATATYPES[datatype]).reshape(shape)
    except (OverflowError, ValueError) as error:
        raise errors.InvalidInput(f"{where}: a number does not fit into {datatype} ({error})") from error


def _flatten(data: list[Any]) -> list[Any]:
    flat: list[Any] = []
    stack: list[Any] = [iter(data)]
    while stack:
        for element in stack[-1]:
            if isinstance(element, list):
                stack.append(iter(element))
                break
            flat.append(element)
        else:
            stack.pop()
    return flat


def _nest(flat: list[Any], shape: list[int]) -> list[Any]:
    size = len(flat) // shape[0] if shape[0] else 0
    return [flat[row * size : (row + 1) * size] for row in range(shape[0])]


def _strings(chunk: memoryview, count: int, where: str) -> list[bytes]:
    elements: list[bytes] = []
    at = 0
    while at < len(chunk):
        if at + 4 > len(chunk):
            raise errors.InvalidInput(f"{where}: a BYTES element's length is cut off")
        (length,) = struct.unpack_from("<I", chunk, at)
        at += 4
        if at + length > len(chunk):
            raise errors.InvalidInput(f"{where}: a BYTES element of {length} bytes is cut off")
        elements.append(bytes(chunk[at : at + length]))
        at += length
    if len(elements) != count:
        raise errors.InvalidInput(f"{where}: the shape has {count} elements, the data {len(elements)}")
    return elements


def _row(tensors: dict[str, Any], item: items.Item, parameters: dict[str, Any]) -> items.Item:
    value = next(iter(tensors.values())) if len(tensors) == 1 else None
    single = value if isinstance(value, (bytes, str)) else None
    return items.Item(
        value=single,
        parts=parameters,
        headers=item.headers,
        # A JSON string is text to a text handler and base64 to one that wants bytes.
        content_type="application/json" if isinstance(single, str) else "application/octet-stream",
        tensors=tensors,
    )


def _wanted(outputs: Any, *, default: bool) -> dict[str, bool]:
    if outputs is None:
        return {}
    if not isinstance(outputs, list):
        raise errors.InvalidInput('"outputs" must be a list')
    wanted: dict[str, bool] = {}
    for index, given in enumerate(outputs):
        entry = _mapping(given, f"outputs[{index}]")
        if not isinstance(entry.get("name"), str):
            raise errors.InvalidInput(f"outputs[{index}].name must be text")
        parameters = _mapping(entry.get("parameters"), f"outputs[{index}].parameters")
        wanted[entry["name"]] = bool(parameters.get("binary_data", default))
    return wanted


def _output(name: str, value: Any, *, as_binary: bool) -> tuple[dict[str, Any], bytes]:
    if isinstance(value, list):
        shape = [len(value), len(value[0])] if value and isinstance(value[0], list) else [len(value)]
        raw = [each if isinstance(each, bytes) else str(each).encode("utf-8", "replace") for each in _flatten(value)]
        entry: dict[str, Any] = {"name": name, "datatype": "BYTES", "shape": shape}
        if not as_binary:
            return entry | {"data": [element.decode("utf-8", "replace") for element in raw]}, b""
        data = b"".join(struct.pack("<I", len(element)) + element for element in raw)
    else:
        array = np.ascontiguousarray(value)
        datatype = _NAMES.get(array.dtype.newbyteorder("="))
        if datatype is None:
            raise errors.BadOutput(f"output {name} has dtype {array.dtype}, which the protocol does not know")
        entry = {"name": name, "datatype": datatype, "shape": list(array.shape)}
        if not as_binary:
            return entry | {"data": array.ravel().tolist()}, b""
        data = array.astype(DATATYPES[datatype], copy=False).tobytes()
    return entry | {"parameters": {"binary_data_size": len(data)}}, data


def _mapping(value: Any, where: str) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise errors.InvalidInput(f"{where} must be a JSON object")
    return value
