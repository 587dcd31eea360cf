"""A batch's life: decode → infer → encode, with every item's errors kept to itself.

Knows nothing of TorchServe: items go in, finished answers (bytes, status, type) come out, one for each request.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from handlers import errors, items, oip
from handlers.base import Handler

logger = logging.getLogger(__name__)

JSON = "application/json"
PROBLEM = "application/problem+json"

# A handler that calls sys.exit() must not take the batch with it.
_RAISED = (Exception, SystemExit)

Send = Callable[[int, bytes, str], None]
"""``send(request, data, content_type)``: one piece of a streamed answer."""


class FatalError(Exception):
    """The process cannot go on: a CUDA error leaves a context in which every later call fails."""


@dataclass(frozen=True, kw_only=True)
class Response:
    """A finished answer to one request."""

    body: bytes
    status: int = 200
    content_type: str = JSON
    headers: dict[str, str] = field(default_factory=dict[str, str])


# Compared by identity: two clients may send the very same item.
@dataclass(kw_only=True, eq=False)
class _Request:
    item: items.Item
    rows: list[items.Item] = field(default_factory=list[items.Item])
    infer: oip.Request | None = None
    several: bool = False
    error: BaseException | None = None
    streamed: bool = False


@dataclass(kw_only=True, eq=False)
class _Row:
    request: _Request
    item: items.Item
    wants_stream: bool = False
    decoded: Any = None
    output: Any = None
    error: BaseException | None = None

    @property
    def failed(self) -> bool:
        return self.error is not None


@dataclass(frozen=True, kw_only=True)
class Batcher:
    """Runs batches through one handler.

    Args:
        model: name written into Open Inference Protocol answers.
        version: likewise.
        max_response_bytes: an answer over this becomes an error; sent on, it would kill the worker.
        batch_size: rows that are inferred together at most; one request may hold many more.
    """

    handler: Handler
    model: str
    version: int
    max_response_bytes: int
    batch_size: int = 64

    def answer(self, batch: Sequence[items.Item], *, send: Send | None = None) -> list[Response]:
        """Answer every request of a batch.

        Args:
            send: how pieces of streamed answers leave; without it nothing is streamed.

        Returns:
            One response for each request, in order.

        Raises:
            FatalError: the process must end.
        """
        requests = [_Request(item=item) for item in batch]
        rows = [row for request in requests for row in self._explode(request)]
        for row in rows:
            try:
                row.decoded = self.handler.decode(row.item)
            except _RAISED as error:
                row.error = _noted(error, "decode")
        decoded = [row for row in rows if not row.failed]
        for start in range(0, len(decoded), self.batch_size):
            self._infer(decoded[start : start + self.batch_size], requests, send)
        for row in rows:
            if not row.failed:
                try:
                    row.output = self.handler.encode(row.output, row.item)
                except _RAISED as error:
                    row.error = _noted(error, "encode")
        return [self._response(request, [row for row in rows if row.request is request]) for request in requests]

    def _explode(self, request: _Request) -> list[_Row]:
        try:
            if oip.is_request(request.item):
                request.infer = oip.parse(request.item)
                request.rows = request.infer.rows
            else:
                several = items.instances(request.item)
                request.several = several is not None
                request.rows = several if several is not None else [request.item]
        except _RAISED as error:
            request.error = _noted(error, "read")
        return [
            _Row(request=request, item=item, wants_stream=self._wants_stream(request, item)) for item in request.rows
        ]

    def _infer(self, rows: list[_Row], requests: list[_Request], send: Send | None) -> None:
        error = self._infer_together(rows, requests, send)
        if error is None:
            return
        # One bad item must not spoil the batch: alone, each shows whether it is the one. A stream that has begun
        # cannot begin anew.
        for row in rows:
            again = len(rows) > 1 and not row.request.streamed
            row.error = self._infer_together([row], requests, send) if again else error

    def _infer_together(self, rows: list[_Row], requests: list[_Request], send: Send | None) -> BaseException | None:
        def emit(index: int, piece: Any) -> None:
            row = rows[index]
            if row.wants_stream and send is not None:
                data, content_type = _piece(piece, row.request.item)
                row.request.streamed = True
                send(requests.index(row.request), data, content_type)

        batch = [row.decoded for row in rows]
        try:
            if send is not None and any(row.wants_stream for row in rows):
                outputs = self.handler.infer_streaming(batch, emit)
            else:
                outputs = self.handler.infer(batch)
        except _RAISED as error:
            return _noted(error, "infer")
        return _assign(rows, outputs)

    def _wants_stream(self, request: _Request, item: items.Item) -> bool:
        if not self.handler.streams or request.infer is not None or request.several:
            return False
        return item.may_stream and item.option("stream") in (True, 1, "true", "True", "1")

    def _response(self, request: _Request, rows: list[_Row]) -> Response:
        failed = next((index for index, row in enumerate(rows) if row.failed), None)
        error = request.error if failed is None else rows[failed].error
        if error is None:
            try:
                return self._finished(request, [row.output for row in rows])
            except _RAISED as raised:
                error = _noted(raised, "answer")
        # Of several items in one request the first that failed is told.
        extras = {"item": failed} if failed is not None and len(rows) > 1 else {}
        status, body = errors.body(error, **extras, model=self.model, version=self.version)
        if request.streamed:
            return _last_piece(body, request.item)
        return Response(body=body, status=status, content_type=PROBLEM)

    def _finished(self, request: _Request, outputs: list[Any]) -> Response:
        headers: dict[str, str] = {}
        if request.infer is not None:
            named = self.handler.tensors(outputs) or {"output": [errors.encode_json(output) for output in outputs]}
            body, length = oip.render(request.infer, named, model=self.model, version=self.version)
            content_type = JSON if length is None else "application/octet-stream"
            if length is not None:
                headers[oip.LENGTH_HEADER] = str(length)
        elif request.several:
            body, content_type = errors.encode_json({"predictions": outputs}), JSON
        else:
            body, content_type = _encoded(outputs[0])
        if len(body) > self.max_response_bytes:
            raise errors.OutputTooLarge.over(len(body), self.max_response_bytes)
        if request.streamed:
            return _last_piece(body, request.item)
        return Response(body=body, content_type=content_type, headers=headers)


def _assign(rows: list[_Row], outputs: Any) -> BaseException | None:
    if isinstance(outputs, (str, bytes)) or not hasattr(outputs, "__len__"):
        return errors.BadOutput(f"infer returned {type(outputs).__name__}; return a list with one answer for each item")
    if len(outputs) != len(rows):
        return errors.BadOutput(
            f"infer returned {len(outputs)} answers for a batch of {len(rows)}; return one for each"
        )
    for row, output in zip(rows, outputs, strict=True):
        # A handler may answer a single item with its error.
        row.error = output if isinstance(output, Exception) else None
        row.output = output
    return None


def _encoded(output: Any) -> tuple[bytes, str]:
    if isinstance(output, (bytes, bytearray)):
        return bytes(output), "application/octet-stream"
    if isinstance(output, str):
        return errors.printable(output).encode(), "text/plain; charset=utf-8"
    return errors.encode_json(output), JSON


def _piece(piece: Any, item: items.Item) -> tuple[bytes, str]:
    data = errors.encode_json(piece)
    # Over REST the pieces share one body, so each needs a frame; over gRPC each is a message.
    return (b"data: " + data + b"\n\n", "text/event-stream") if item.headers else (data, JSON)


def _last_piece(body: bytes, item: items.Item) -> Response:
    if not item.headers:
        return Response(body=body)
    return Response(body=b"data: " + body + b"\n\n", content_type="text/event-stream")


def _noted(error: BaseException, verb: str) -> BaseException:
    """The error, logged when it is the model's and not the client's; never with the client's data."""
    if is_fatal(error):
        raise FatalError(str(error)) from error
    if not isinstance(error, errors.HandlerError) or error.status >= 500:
        logger.error("%s failed", verb, exc_info=error)
    return error


def is_fatal(error: BaseException) -> bool:
    """Whether an error leaves the CUDA context unusable; running out of memory does not."""
    if type(error).__name__ == "OutOfMemoryError":
        return False
    text = str(error)
    return isinstance(error, RuntimeError) and (
        "CUDA error" in text or "CUBLAS_STATUS" in text or "CUDNN_STATUS" in text
    )
