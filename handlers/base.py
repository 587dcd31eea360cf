"""What a model's author writes: one class with four verbs, in the order in which data flows.

``load`` once in each worker; then for every batch ``decode`` each item, ``infer`` them together, ``encode`` each
answer. Everything else (batching, errors of single items, protocols, limits, warm-up) happens around it, in
:mod:`handlers.batches` and :mod:`handlers.runtime`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from handlers.errors import HandlerError, InvalidInput, TooLarge, UnsupportedMedia
from handlers.items import Item

__all__ = ["Emit", "Handler", "HandlerError", "InvalidInput", "Item", "LoadContext", "TooLarge", "UnsupportedMedia"]

Emit = Callable[[int, Any], None]
"""``emit(index, piece)``: send a piece of the answer to the item at this place of the batch, now."""


@dataclass(frozen=True, kw_only=True)
class LoadContext:
    """Where a handler finds itself.

    Attributes:
        folder: the unpacked archive.
        device: ``cpu`` or ``cuda:N``.
        model_file: the weights, a file or a folder; ``None`` when the archive has none.
        architecture: ``torchvision:BUILDER``, ``file:NAME.py:CALLABLE`` or ``None``.
        options: the ``options`` of model.yaml.
        model: the model's name.
        version: its version; 0 outside a replica.
        threads: intra-op threads of this worker.
    """

    folder: Path
    device: str = "cpu"
    model_file: Path | None = None
    architecture: str | None = None
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    model: str = ""
    version: int = 0
    threads: int = 1


class Handler:
    """Base of every handler.

    Raise :class:`InvalidInput` (or another :class:`HandlerError`) from ``decode`` for an item that the client must
    mend: it gets that error, the others of its batch their answers. Any other exception becomes a 500 for the item.
    """

    streams = False
    """Whether ``infer_streaming`` is to be called for items that ask for a stream (``"stream": true``)."""

    def load(self, context: LoadContext) -> None:
        """Make the model ready to answer. Called once, before the first batch; raise to refuse."""

    def decode(self, item: Item) -> Any:
        """Turn one item into what ``infer`` takes."""
        return item.body()

    def infer(self, batch: list[Any]) -> Sequence[Any]:
        """Answer a batch.

        Args:
            batch: what ``decode`` returned, one for each item that could be decoded.

        Returns:
            As many answers, in the same order.
        """
        raise HandlerError(f"{type(self).__name__} has no infer(batch); write one that returns a list")

    def infer_streaming(self, batch: list[Any], emit: Emit) -> Sequence[Any]:
        """Like ``infer``, but sends pieces as they come; the returned answers end the streams."""
        return self.infer(batch)

    def encode(self, output: Any, item: Item) -> Any:
        """Turn one answer into text, bytes, or what JSON can say (numpy and torch values included)."""
        return output

    def tensors(self, outputs: list[Any]) -> dict[str, Any]:
        """Answers of several rows as Open Inference Protocol outputs.

        Args:
            outputs: encoded answers, one for each row.

        Returns:
            Name → numpy array with the rows first, or a list of text or bytes (BYTES). Empty: the runtime sends
            each answer as JSON in one BYTES output named ``output``.
        """
        return {}
