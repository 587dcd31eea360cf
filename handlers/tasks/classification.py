"""A class for a whole text."""

from __future__ import annotations

from typing import Any

import transformers

from handlers.base import Emit, LoadContext
from handlers.tasks import task


class SequenceClassification(task.Task):
    """Answers ``{"label", "score", "scores": [{"label", "score"}], "truncated"}``, best first.

    Options: ``top_k`` (default: all), ``activation``: ``softmax`` or, for several labels at once, ``sigmoid``
    (default: what the model's config says).
    """

    own_options = frozenset({"top_k", "activation"})
    auto = transformers.AutoModelForSequenceClassification

    def __init__(self, context: LoadContext) -> None:
        super().__init__(context)
        self._top_k = self.whole("top_k", max(1, self.config.num_labels))
        several = getattr(self.config, "problem_type", None) == "multi_label_classification"
        self._activation = self.options.get("activation", "sigmoid" if several else "softmax")

    def infer(self, batch: list[str], emit: Emit | None) -> list[Any]:
        encoding, cut = self.encode(batch)
        logits = self.run(encoding).logits.float()
        finite = task.finite(logits)
        scores = logits.sigmoid() if self._activation == "sigmoid" else logits.softmax(-1)
        values, indices = scores.topk(min(self._top_k, scores.shape[1]), dim=1)
        answers: list[Any] = []
        for row_values, row_indices, was_cut, is_finite in zip(
            values.tolist(), indices.tolist(), cut, finite, strict=True
        ):
            ranked = [
                {"label": self.label(index), "score": score}
                for index, score in zip(row_indices, row_values, strict=True)
            ]
            answer = {**ranked[0], "scores": ranked, "truncated": was_cut}
            answers.append(answer if is_finite else task.not_finite())
        return answers
