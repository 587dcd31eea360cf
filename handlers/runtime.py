"""What TorchServe calls: one function for loading and for batches, around whatever handler the archive brings."""

from __future__ import annotations

import http
import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn, Protocol

import torch

from handlers import archive, batches, errors, items, loading, output, torchserve_adapter
from handlers.base import Handler, LoadContext

logger = logging.getLogger(__name__)

STREAM_HEADER = "ts_stream_next"
"""TorchServe's own mark on an answer: ``true`` when pieces follow, ``false`` on the last one."""

MIN_ROWS_TOGETHER = 8
"""Rows of one request that are inferred together, where TorchServe's own batches are smaller."""

GOLDEN_FOLDER = "golden"

EXIT_CUDA = 75
"""Exit status of a worker whose CUDA context is lost; TorchServe starts another."""

Data = list[dict[str, Any]]


class Worker(Protocol):
    """A loaded model in one TorchServe worker."""

    def handle(self, data: Data, context: Any) -> list[Any]: ...


def entry(file: str) -> Callable[[Data | None, Any], list[Any] | None]:
    """The function that TorchServe's model loader looks for in the archive's entry file.

    Args:
        file: ``__file__`` of the entry, in the unpacked archive.

    Returns:
        ``handle(data, context)``: called once without data to load, then for every batch.
    """
    worker: Worker | None = None

    def handle(data: Data | None, context: Any) -> list[Any] | None:
        nonlocal worker
        if worker is None:
            output.bound()
            worker = load(_folder(file, context), context)
        if data is None:
            return None
        try:
            return worker.handle(data, context)
        except batches.FatalError as error:
            _give_up(error, len(data), context)

    return handle


def load(folder: Path, context: Any) -> Worker:
    """Load the archive's model and warm it up on its golden inputs.

    Raises:
        LoadError: in words that reach the person who promoted the version.
    """
    described = archive.read(folder)
    archive.check_requirements(described.requirements)
    if described.threads is not None:
        torch.set_num_threads(described.threads)
    handler = loading.native_handler(described)
    if not isinstance(handler, Handler):
        function = described.handler.removeprefix("file:").partition(":")[2]
        adapted = torchserve_adapter.TorchServeWorker(handler, described, context, function=function)
        adapted.warm_up(
            [(name, dict(item.parts), _headers_of(item)) for name, item in golden_items(described)], context
        )
        return adapted
    # TorchServe would parse JSON a second time, and log a traceback for each body that does not parse.
    os.environ["TS_DECODE_INPUT_REQUEST"] = "false"
    try:
        handler.load(load_context(described, device=_device(context)))
    except SystemExit as error:
        # The worker would end without a word, and be started again and again.
        raise errors.LoadError(
            f"{described.handler} ended the process while it loaded (SystemExit: {error})"
        ) from error
    batch_size = int((context.system_properties if context else {}).get("batch_size") or 1)
    worker = NativeWorker(handler, described, batch_size=batch_size)
    worker.warm_up(batch_size=batch_size)
    return worker


def load_context(described: archive.Archive, *, device: str) -> LoadContext:
    """What a handler's ``load`` is told."""
    return LoadContext(
        folder=described.folder,
        device=device,
        model_file=described.path(described.model_file, what="model_file") if described.model_file else None,
        architecture=described.architecture,
        options=described.options,
        model=described.model,
        version=described.version,
        threads=torch.get_num_threads(),
    )


class NativeWorker:
    """A handler of ours, between TorchServe's lists and :class:`handlers.batches.Batcher`."""

    def __init__(self, handler: Handler, described: archive.Archive, *, batch_size: int = 1) -> None:
        self._archive = described
        self._batcher = batches.Batcher(
            handler=handler,
            model=described.model,
            version=described.version,
            max_response_bytes=described.max_response_bytes,
            # TorchServe's batches are never cut; a request that holds many items is.
            batch_size=max(batch_size, MIN_ROWS_TOGETHER),
        )

    def warm_up(self, *, batch_size: int) -> None:
        """Answer every golden input, alone and in a full batch: the first client must not pay for what is lazy.

        Raises:
            LoadError: a golden input is not answered.
        """
        inputs = golden_items(self._archive)
        for name, item in inputs:
            (response,) = self._batcher.answer([item])
            if response.status != 200:
                raise errors.LoadError(f"golden input {name} is answered {response.status}: {response.body.decode()}")
        if inputs and batch_size > 1:
            self._batcher.answer([inputs[index % len(inputs)][1] for index in range(batch_size)])

    def answer(self, batch: Sequence[items.Item]) -> list[batches.Response]:
        """Answer items that did not come through TorchServe (replay, tests)."""
        return self._batcher.answer(batch)

    def handle(self, data: Data, context: Any) -> list[Any]:
        batch = [items.of_request(parts, context.get_all_request_header(index)) for index, parts in enumerate(data)]
        responses = self._batcher.answer(batch, send=_sender(context))
        for index, response in enumerate(responses):
            _describe(context, index, response)
        return [response.body for response in responses]


def golden_items(described: archive.Archive) -> list[tuple[str, items.Item]]:
    """The archive's golden inputs as items, by file name.

    Raises:
        LoadError: a file is missing.
    """
    found: list[tuple[str, items.Item]] = []
    for each in described.golden:
        # Below golden/, whether the name says so or not: the agent looks there, too.
        inside = f"{GOLDEN_FOLDER}/{each['file']}"
        name = inside if (described.folder / inside).exists() else each["file"]
        path = described.path(name, what="golden input")
        content_type = each.get("content_type") or "application/octet-stream"
        value: Any = path.read_bytes()
        if content_type == "application/json" or content_type.startswith("text"):
            value = _as_torchserve_would(value, content_type)
        headers: dict[str, Any] = {"content-type": content_type, "body": {"content-type": content_type}}
        found.append((each["file"], items.of_request({"body": value}, headers)))
    return found


def _as_torchserve_would(value: bytes, content_type: str) -> Any:
    import json

    try:
        return json.loads(value) if content_type == "application/json" else value.decode()
    except ValueError:
        return value


def _describe(context: Any, index: int, response: batches.Response) -> None:
    over_grpc = not any(isinstance(value, str) for value in context.get_all_request_header(index).values())
    context.set_response_content_type(index, response.content_type)
    for name, value in response.headers.items():
        context.set_response_header(index, name, value)
    if response.status != 200:
        context.set_response_status(response.status, http.HTTPStatus(response.status).phrase, index)
    # StreamPredictions ends only at this mark, also when nothing was streamed; unary calls ignore it. A REST answer
    # must not carry it unless pieces of it went out before: TorchServe would send a body without a head.
    if over_grpc or response.content_type == "text/event-stream":
        context.set_response_header(index, STREAM_HEADER, "false")


def _sender(context: Any) -> batches.Send:
    """Sends pieces of streamed answers; an answer's last piece is what ``handle`` returns for it."""

    def send(index: int, data: bytes, content_type: str) -> None:
        from ts.handler_utils.utils import send_intermediate_predict_response  # pyright: ignore

        context.set_response_content_type(index, content_type)
        # Only this request: an answer to the others would end theirs.
        ids = {index: context.request_ids[index]}
        send_intermediate_predict_response({index: data}, ids, "Intermediate", 200, context)

    return send


def _headers_of(item: items.Item) -> dict[str, Any]:
    return {"content-type": item.content_type, "body": {"content-type": item.content_type}}


def _give_up(error: batches.FatalError, count: int, context: Any) -> NoReturn:
    """Answer the batch with 503 and end the process: TorchServe starts another with a context that works."""
    from ts.protocol.otf_message_handler import create_predict_response  # pyright: ignore

    logger.critical("the CUDA context is lost; this worker ends and another takes over", exc_info=error)
    try:
        body = errors.document("worker-lost", 503, "The worker lost its GPU", f"{error}; try again", {})
        for index in range(count):
            _describe(context, index, batches.Response(body=body, status=503, content_type=batches.PROBLEM))
        answers = create_predict_response([body] * count, context.request_ids, "Worker lost", 200, context=context)
        context.cl_socket.sendall(answers)
    finally:
        logging.shutdown()
        os._exit(EXIT_CUDA)


def _folder(file: str, context: Any) -> Path:
    if context is not None and context.system_properties.get("model_dir"):
        return Path(context.system_properties["model_dir"])
    return Path(file).resolve().parent


def _device(context: Any) -> str:
    gpu = context.system_properties.get("gpu_id") if context is not None else None
    if gpu is not None and torch.cuda.is_available():
        return f"cuda:{gpu}"
    return "cpu"
