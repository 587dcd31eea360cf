"""Pictures in, labels with scores out."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from handlers import archive, errors, loading, preprocessing
from handlers.base import Handler, Item, LoadContext
from handlers.engines import eager
from handlers.preprocessing import Preprocessing

ACTIVATIONS = ("softmax", "sigmoid", "none")

OPTIONS = frozenset({"labels", "top_k", "activation", "architecture_args", *preprocessing.OPTIONS})


class ImageClassifier(Handler):
    """Classifies images with any torch module that maps (N, C, H, W) float32 to (N, classes) logits.

    Options: ``labels top_k activation architecture_args`` and those of
    :class:`handlers.preprocessing.Preprocessing`. Answers ``[{"label", "score", "index"}]``, best first.
    """

    def load(self, context: LoadContext) -> None:
        options = context.options
        loading.check_options(options, known=OPTIONS)
        self._preprocessing = Preprocessing.from_options(options)
        self._top_k = options.get("top_k", 5)
        if not isinstance(self._top_k, int) or self._top_k < 1:
            raise errors.LoadError(f"option top_k is {self._top_k!r}; write a whole number above 0")
        self._activation = options.get("activation", "softmax")
        if self._activation not in ACTIVATIONS:
            raise errors.LoadError(f"option activation is {self._activation!r}; use one of {', '.join(ACTIVATIONS)}")
        described = archive.Archive(folder=context.folder, handler="image_classifier")
        labels = options.get("labels")
        self._labels = loading.read_labels(described.path(labels, what="labels")) if labels is not None else None
        module = loading.load_module(context, described)
        self._engine = eager.Eager(module, device=context.device, channels_last=True)

    def decode(self, item: Item) -> torch.Tensor:
        """One image as (C, H, W): uint8 from a file or a UINT8 tensor, float32 from a prepared FP32 tensor."""
        if item.tensors:
            return self._from_tensor(item)
        return self._preprocessing.picture(item.body())

    def _from_tensor(self, item: Item) -> torch.Tensor:
        value = next(iter(item.tensors.values()))
        if len(item.tensors) != 1 or isinstance(value, list):
            raise errors.InvalidInput(
                "send one input with one image for each row: BYTES, UINT8 (H, W, C) or FP32 (C, H, W)"
            )
        if isinstance(value, np.ndarray):
            if value.dtype == np.uint8 and value.ndim in (2, 3):
                return self._pixels(value)
            channels = len(self._preprocessing.mean)
            if value.dtype == np.float32 and value.ndim == 3 and value.shape[0] == channels and value.size:
                return torch.from_numpy(value.copy())
            raise errors.InvalidInput(
                f"a row is {value.dtype} of shape {list(value.shape)}; send UINT8 (H, W, {channels}) pixels or "
                f"prepared FP32 ({channels}, H, W)"
            )
        return self._preprocessing.picture(item.body())

    def _pixels(self, value: Any) -> torch.Tensor:
        channels = 1 if value.ndim == 2 else value.shape[2]
        wanted = 1 if self._preprocessing.mode == "L" else 3
        if channels != wanted or 0 in value.shape:
            raise errors.InvalidInput(f"a row has shape {list(value.shape)}; this model takes (H, W, {wanted}) pixels")
        if value.shape[0] * value.shape[1] > self._preprocessing.max_pixels:
            raise errors.TooLarge(
                f"a row has {value.shape[0] * value.shape[1]} pixels, the limit is {self._preprocessing.max_pixels}",
                limit_pixels=self._preprocessing.max_pixels,
            )
        return self._preprocessing.fit(value[:, :, 0].copy() if wanted == 1 and value.ndim == 3 else value.copy())

    def infer(self, batch: list[torch.Tensor]) -> list[Any]:
        """(C, H, W) tensors, uint8 or prepared float32, to one answer each.

        Tensors of one shape and type run together; without ``size`` or ``crop`` there may be several.
        """
        answers: list[Any] = [None] * len(batch)
        groups: dict[tuple[Any, ...], list[int]] = {}
        for index, image in enumerate(batch):
            groups.setdefault((image.dtype, *image.shape), []).append(index)
        for indices in groups.values():
            stacked = self._engine.to_device(torch.stack([batch[index] for index in indices]))
            inputs = stacked if stacked.is_floating_point() else self._preprocessing.normalize(stacked)
            for index, answer in zip(indices, self._answers(self._engine.run(inputs)), strict=True):
                answers[index] = answer
        return answers

    def _answers(self, logits: torch.Tensor) -> list[Any]:
        if logits.ndim != 2:
            raise errors.BadOutput(f"the model returned shape {list(logits.shape)}; expected (N, classes) logits")
        logits = logits.float()
        # A NaN sorts above everything: without this check it would be the best label.
        finite = torch.isfinite(logits).all(dim=1).tolist()
        scores = {"softmax": lambda: logits.softmax(1), "sigmoid": logits.sigmoid, "none": lambda: logits}[
            self._activation
        ]()
        values, indices = scores.topk(min(self._top_k, logits.shape[1]), dim=1)
        return [
            [self._labelled(*pair) for pair in zip(row_indices, row_values, strict=True)]
            if is_finite
            else errors.BadOutput("the model's output is not finite (NaN or infinity) for this image")
            for row_values, row_indices, is_finite in zip(values.tolist(), indices.tolist(), finite, strict=True)
        ]

    def _labelled(self, index: int, score: float) -> dict[str, Any]:
        known = self._labels is not None and index < len(self._labels)
        return {"label": self._labels[index] if known and self._labels else str(index), "score": score, "index": index}

    def tensors(self, outputs: list[Any]) -> dict[str, Any]:
        """Outputs ``label`` (BYTES) and ``score`` (FP32), both (N, top_k)."""
        return {
            "label": [[each["label"] for each in row] for row in outputs],
            "score": np.array([[each["score"] for each in row] for row in outputs], dtype=np.float32),
        }
