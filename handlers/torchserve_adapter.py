"""An existing TorchServe handler, unchanged, with the errors of single items kept apart.

TorchServe answers a whole batch with 503 when ``handle`` raises once. Here the batch is then repeated item by item,
so that only the guilty one gets an error.
"""

from __future__ import annotations

import inspect
import logging
from types import ModuleType
from typing import Any

import torch

from handlers import archive, batches, errors

logger = logging.getLogger(__name__)


class TorchServeWorker:
    """Runs a module-level ``handle(data, context)``, or the one class of the module that has a ``handle``.

    Raises:
        LoadError: the module has neither. What the handler's own ``initialize`` raises passes through.
    """

    def __init__(self, module: ModuleType, described: archive.Archive, context: Any) -> None:
        function = getattr(module, "handle", None)
        if callable(function):
            self._handle = function
            function(None, context)
            return
        classes = [
            member
            for _, member in inspect.getmembers(module, inspect.isclass)
            if member.__module__ == module.__name__ and hasattr(member, "handle")
        ]
        if len(classes) != 1:
            raise errors.LoadError(
                f"{described.handler} has {len(classes)} classes with a handle method and no function handle(data, "
                "context); write one class that extends handlers.base.Handler, or one TorchServe handler"
            )
        instance: Any = classes[0]()
        instance.initialize(context)
        self._handle = instance.handle

    def handle(self, data: list[dict[str, Any]], context: Any) -> list[Any]:
        outputs, error = self._try(data, context)
        if error is not None and len(data) > 1:
            outputs = []
            processors, ids = context.request_processor, context.request_ids
            for index, parts in enumerate(data):
                context.request_processor, context.request_ids = [processors[index]], {0: ids[index]}
                outputs.append(self._alone(parts, context))
            context.request_processor, context.request_ids = processors, ids
        elif error is not None:
            outputs = [self._refuse(error, context, 0)]
        return [self._safe(output, context, index) for index, output in enumerate(outputs)]

    def _alone(self, parts: dict[str, Any], context: Any) -> Any:
        outputs, error = self._try([parts], context)
        return outputs[0] if error is None else self._refuse(error, context, 0)

    def _try(self, data: list[dict[str, Any]], context: Any) -> tuple[list[Any], BaseException | None]:
        try:
            outputs = self._handle(data, context)
        except MemoryError:
            raise
        except Exception as error:
            if batches.is_fatal(error):
                raise
            logger.error("handle failed", exc_info=True)
            return [], error
        if isinstance(outputs, torch.Tensor):
            outputs = outputs.tolist()
        if not isinstance(outputs, list) or len(outputs) != len(data):
            given = len(outputs) if isinstance(outputs, list) else type(outputs).__name__
            return [], errors.BadOutput(
                f"handle returned {given} answers for a batch of {len(data)}; return a list with one for each"
            )
        return outputs, None

    def _refuse(self, error: BaseException, context: Any, index: int) -> bytes:
        status, body = errors.body(error)
        code = getattr(error, "error_code", None)
        if isinstance(code, int) and 400 <= code <= 599:  # TorchServe's own PredictionException
            status = code
            body = errors.document("handler", code, "The handler refused the input", str(error), {})
        context.set_response_status(status, "", index)
        context.set_response_content_type(index, batches.PROBLEM)
        return body

    def _safe(self, output: Any, context: Any, index: int) -> Any:
        """The answer in a form that TorchServe can send: an error while it writes one kills the worker."""
        if isinstance(output, (bytes, bytearray, torch.Tensor)):
            return output
        if isinstance(output, str):
            return errors.printable(output)
        try:
            return errors.encode_json(output)
        except errors.BadOutput as error:
            return self._refuse(error, context, index)
