"""Entities in a text: neighbouring tokens of one kind become one span of the original text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import transformers

from handlers.base import Emit, LoadContext
from handlers.tasks import task


@dataclass(kw_only=True)
class _Entity:
    kind: str
    start: int
    end: int
    scores: list[float]


class TokenClassification(task.Task):
    """Answers ``{"entities": [{"type", "score", "start", "end", "text"}], "truncated"}``.

    ``start`` and ``end`` count characters of the text as it was sent. A word's first token decides for the whole
    word; ``B-`` and ``I-`` prefixes join words; a score is the mean over the words' first tokens.

    Options: ``ignore_labels`` (default ``["O"]``).
    """

    own_options = frozenset({"ignore_labels"})
    auto = transformers.AutoModelForTokenClassification

    def __init__(self, context: LoadContext) -> None:
        super().__init__(context)
        self._ignored = set(self.options.get("ignore_labels", ["O"]))

    def infer(self, batch: list[str], emit: Emit | None) -> list[Any]:
        encoding, cut = self.encode(batch, return_offsets_mapping=True)
        logits = self.run(encoding).logits.float()
        # Padding may hold anything: only tokens that are read must be finite.
        finite = task.finite(logits.masked_fill(encoding["attention_mask"].to(logits.device).unsqueeze(-1) == 0, 0.0))
        scores, indices = logits.softmax(-1).max(-1)
        answers: list[Any] = []
        for row, text in enumerate(batch):
            if not finite[row]:
                answers.append(task.not_finite())
                continue
            entities = self._entities(
                encoding.word_ids(row),
                encoding["offset_mapping"][row].tolist(),
                indices[row].tolist(),
                scores[row].tolist(),
            )
            found = [
                {
                    "type": each.kind,
                    "score": sum(each.scores) / len(each.scores),
                    "start": each.start,
                    "end": each.end,
                    "text": text[each.start : each.end],
                }
                for each in entities
            ]
            answers.append({"entities": found, "truncated": cut[row]})
        return answers

    def _entities(
        self, words: list[int | None], offsets: list[list[int]], indices: list[int], scores: list[float]
    ) -> list[_Entity]:
        found: list[_Entity] = []
        open_entity: _Entity | None = None
        last_word: int | None = None
        for word, (start, end), index, score in zip(words, offsets, indices, scores, strict=True):
            if word is None:
                continue
            if word == last_word:
                if open_entity is not None:
                    open_entity.end = end
                continue
            last_word = word
            label = self.label(index)
            if label in self._ignored:
                open_entity = None
                continue
            prefix, _, kind = label.partition("-") if label[:2] in ("B-", "I-") else ("", "", label)
            if open_entity is not None and open_entity.kind == kind and prefix != "B":
                open_entity.end = end
                open_entity.scores.append(score)
                continue
            open_entity = _Entity(kind=kind, start=start, end=end, scores=[score])
            found.append(open_entity)
        return found
