"""Text in: classes, entities, spans, embeddings or text out, from a Hugging Face directory, without a network.

The task decides what is loaded and what is answered; each lives in :mod:`handlers.tasks`. Here is what they share:
loading, limits of length, and turning text into padded tensors.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from handlers import errors
from handlers.base import Emit, Handler, Item, LoadContext

# Set before transformers is imported: a replica answers from its archive, never from a hub.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_OFFLINE", "1")

TASKS = (
    "sequence-classification",
    "token-classification",
    "question-answering",
    "embeddings",
    "text-generation",
)


class Transformer(Handler):
    """Serves one task of a Hugging Face model.

    Options: ``task`` (one of :data:`TASKS`), ``max_length`` (tokens), ``truncation`` (``truncate`` or ``error``),
    ``max_characters``, and those of the task. Where an input was cut, its answer says ``"truncated": true``.
    """

    def load(self, context: LoadContext) -> None:
        from handlers import tasks

        options = context.options
        name = options.get("task")
        if name not in TASKS:
            raise errors.LoadError(f"option task is {name!r}; use one of {', '.join(TASKS)}")
        if context.model_file is None or not Path(context.model_file).is_dir():
            raise errors.LoadError(
                "model_file must be a folder as save_pretrained writes it (config.json, tokenizer …)"
            )
        self._task = tasks.create(name, context)
        self.streams = name == "text-generation"

    def decode(self, item: Item) -> Any:
        return self._task.decode(item)

    def infer(self, batch: list[Any]) -> list[Any]:
        return self._task.infer(batch, None)

    def infer_streaming(self, batch: list[Any], emit: Emit) -> list[Any]:
        return self._task.infer(batch, emit)

    def tensors(self, outputs: list[Any]) -> dict[str, Any]:
        return self._task.tensors(outputs)
