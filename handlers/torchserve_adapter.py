"""An existing TorchServe handler, unchanged, with the errors of single items kept apart.

TorchServe answers a whole batch with 503 when ``handle`` raises once. Here the batch is then repeated item by item,
so that only the guilty one gets an error.
"""

from __future__ import annotations

import copy
import http
import inspect
import io
import logging
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch

from handlers import archive, batches, errors

logger = logging.getLogger(__name__)


class TorchServeWorker:
    """Runs a module-level ``handle(data, context)``, or the one class of the module that has a ``handle``.

    Args:
        function: name of the module-level function, when the archive names another than ``handle``.

    Raises:
        LoadError: the module has neither. What the handler's own ``initialize`` raises passes through.
    """

    def __init__(self, module: ModuleType, described: archive.Archive, context: Any, *, function: str = "") -> None:
        self._archive = described
        given = getattr(module, function or "handle", None)
        if callable(given) and not inspect.isclass(given):
            self._handle = given
            given(None, context)
            return
        instance = _class(module, described)()
        instance.initialize(context)
        self._handle = instance.handle

    def warm_up(self, rows: Sequence[tuple[str, dict[str, Any], dict[str, Any]]], context: Any) -> None:
        """Answer golden inputs, each alone.

        Args:
            rows: name, parts and headers of each.

        Raises:
            LoadError: one is not answered.
        """
        from ts.context import RequestProcessor  # pyright: ignore

        for name, parts, headers in rows:
            processor = RequestProcessor(headers)
            context.request_processor, context.request_ids = [processor], {0: "golden"}
            if context.metrics is not None:
                context.metrics.request_ids = context.request_ids
            (answer,) = self.handle([parts], context)
            status = processor.get_response_status_code()
            if status >= 400:
                raise errors.LoadError(
                    f"golden input {name} is answered {status}: {bytes(answer).decode('utf-8', 'replace')}"
                )

    def handle(self, data: list[dict[str, Any]], context: Any) -> list[Any]:
        """Answer a batch.

        Returns:
            Bytes or text for each request: nothing that TorchServe could fail to write.

        Raises:
            FatalError: the process must end.
        """
        # The handler may change what it is given, and the batch may have to be repeated.
        outputs, error = self._try([dict(parts) for parts in data], context)
        if error is None:
            return [self._finished(output, context, index) for index, output in enumerate(outputs)]
        if len(data) == 1:
            return [self._refuse(error, context, 0)]
        answers: list[Any] = []
        for index, parts in enumerate(data):
            alone = copy.copy(context)
            alone.request_processor = [context.request_processor[index]]
            alone.request_ids = {0: context.request_ids[index]}
            _forget_answer(alone)
            outputs, error = self._try([dict(parts)], alone)
            answers.append(self._finished(outputs[0], alone, 0) if error is None else self._refuse(error, alone, 0))
        return answers

    def _try(self, data: list[dict[str, Any]], context: Any) -> tuple[list[Any], BaseException | None]:
        try:
            outputs = self._handle(data, context)
        except (Exception, SystemExit) as error:
            if batches.is_fatal(error):
                raise batches.FatalError(str(error)) from error
            logger.error("handle failed", exc_info=True)
            return [], error
        if isinstance(outputs, (tuple, torch.Tensor)):
            outputs = list(outputs)
        if not isinstance(outputs, list):
            return [], errors.BadOutput(f"handle returned {type(outputs).__name__}; return a list")
        if len(outputs) != len(data):
            return [], errors.BadOutput(
                f"handle returned {len(outputs)} answers for a batch of {len(data)}; return a list with one for each"
            )
        return outputs, None

    def _refuse(self, error: BaseException, context: Any, index: int) -> bytes:
        status, body = errors.body(error)
        code = getattr(error, "error_code", None)
        if isinstance(code, int) and 400 <= code <= 599:  # TorchServe's own PredictionException
            status = code
            body = errors.document("handler", code, "The handler refused the input", str(error), {})
        return self._problem(status, body, context, index)

    def _problem(self, status: int, body: bytes, context: Any, index: int) -> bytes:
        context.set_response_status(status, _phrase(status), index)
        context.set_response_content_type(index, batches.PROBLEM)
        self._end_stream(context, index)
        return body

    def _finished(self, output: Any, context: Any, index: int) -> bytes:
        """The answer in a form that TorchServe can send: an error while it writes one kills the worker."""
        try:
            body, content_type = _encoded(output)
            limit = self._archive.max_response_bytes
            if len(body) > limit:
                raise errors.OutputTooLarge.over(len(body), limit)
        except Exception as error:
            logger.error("the answer cannot be sent", exc_info=True)
            return self._refuse(error, context, index)
        status = context.get_response_status(index)[0]
        if status is not None and status >= 400 and not _has_headers(context, index):
            # Over gRPC the status that the handler has set would be lost.
            detail = body.decode("utf-8", "replace")
            document = errors.document("handler", status, "The handler refused the input", detail, {})
            return self._problem(status, document, context, index)
        if content_type is not None and not context.get_response_content_type(index):
            context.set_response_content_type(index, content_type)
        self._end_stream(context, index)
        return body

    def _end_stream(self, context: Any, index: int) -> None:
        # StreamPredictions ends only at this mark; see handlers.runtime.
        if not _has_headers(context, index):
            context.set_response_header(index, "ts_stream_next", "false")


def _class(module: ModuleType, described: archive.Archive) -> type[Any]:
    found = [
        member
        for _, member in inspect.getmembers(module, inspect.isclass)
        if member.__module__ == module.__name__ and hasattr(member, "handle")
    ]
    # A class that another one of the file extends is not the one that is meant.
    leaves = [each for each in found if not any(other is not each and issubclass(other, each) for other in found)]
    if len(leaves) != 1:
        raise errors.LoadError(
            f"{described.handler} has {len(leaves)} classes with a handle method and no function handle(data, "
            "context); write one class that extends handlers.base.Handler, or one TorchServe handler"
        )
    return leaves[0]


def _encoded(output: Any) -> tuple[bytes, str | None]:
    if isinstance(output, (bytes, bytearray)):
        return bytes(output), None
    if isinstance(output, str):
        return errors.printable(output).encode(), None
    if isinstance(output, torch.Tensor):
        # What TorchServe itself does with a tensor.
        buffer = io.BytesIO()
        torch.save(output, buffer)
        return buffer.getvalue(), "application/octet-stream"
    return errors.encode_json(output), batches.JSON


def _has_headers(context: Any, index: int) -> bool:
    """Whether the request came by REST: over gRPC there are only the parts' own descriptions."""
    return any(isinstance(value, str) for value in context.get_all_request_header(index).values())


def _forget_answer(context: Any) -> None:
    """Undo what a failed attempt has said about the answer."""
    context.set_response_status(200, "", 0)
    context.get_response_headers(0).clear()


def _phrase(status: int) -> str:
    try:
        return http.HTTPStatus(status).phrase
    except ValueError:
        return ""
