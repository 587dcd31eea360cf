"""Questions answered with a span of the text that they are asked about."""

from __future__ import annotations

from typing import Any

import torch
import transformers

from handlers import errors
from handlers.base import Emit, Item, LoadContext
from handlers.tasks import task


class QuestionAnswering(task.Task):
    """Takes ``{"question", "context"}``; answers ``{"answer", "score", "start", "end", "truncated"}``.

    ``start`` and ``end`` count characters of the context as it was sent. A context that is too long is read up to
    the model's limit, and the answer says so.

    Options: ``max_answer_tokens`` (default 30).
    """

    own_options = frozenset({"max_answer_tokens"})
    auto = transformers.AutoModelForQuestionAnswering

    def __init__(self, context: LoadContext) -> None:
        super().__init__(context)
        self._max_answer = self.whole("max_answer_tokens", 30)

    def decode(self, item: Item) -> tuple[str, str]:
        fields = item.fields()
        values: list[str] = []
        for name in ("question", "context"):
            value = fields.get(name)
            if isinstance(value, (bytes, bytearray)):
                try:
                    value = value.decode()
                except UnicodeDecodeError as error:
                    raise errors.InvalidInput(f"{name} is not UTF-8: {error}") from error
            if not isinstance(value, str):
                raise errors.InvalidInput(f'{name} must be text; send {{"question": "…", "context": "…"}}')
            values.append(self.check(value, what=name))
        question, context = values
        used = len(self.tokenizer(question, add_special_tokens=True)["input_ids"])
        if used >= self.max_length - 1:
            raise errors.TooLarge(
                f"the question takes {used} of the model's {self.max_length} tokens; no room is left for the context",
                limit_tokens=self.max_length,
            )
        return question, context

    def infer(self, batch: list[tuple[str, str]], emit: Emit | None) -> list[Any]:
        questions, contexts = [pair[0] for pair in batch], [pair[1] for pair in batch]
        encoding, cut = self.encode(questions, contexts, return_offsets_mapping=True)
        output = self.run(encoding)
        starts, ends = output.start_logits.float(), output.end_logits.float()
        answers: list[Any] = []
        for row, context in enumerate(contexts):
            inside = torch.tensor([part == 1 for part in encoding.sequence_ids(row)], device=starts.device)
            start, end = starts[row][inside], ends[row][inside]
            if not (torch.isfinite(start).all() and torch.isfinite(end).all()):
                answers.append(task.not_finite())
                continue
            first, last, score = self._best(start.softmax(0), end.softmax(0))
            offsets = encoding["offset_mapping"][row][inside.cpu()].tolist()
            begin, stop = offsets[first][0], offsets[last][1]
            answers.append(
                {"answer": context[begin:stop], "score": score, "start": begin, "end": stop, "truncated": cut[row]}
            )
        return answers

    def _best(self, start: torch.Tensor, end: torch.Tensor) -> tuple[int, int, float]:
        """The span with the highest product of probabilities, no longer than allowed.

        Args:
            start: (L,) probabilities that the answer starts here; ``end``: (L,) that it ends here.
        """
        scores = torch.triu(torch.outer(start, end))
        scores = torch.tril(scores, diagonal=self._max_answer - 1)
        best = int(scores.argmax())
        first, last = divmod(best, scores.shape[1])
        return first, last, float(scores[first, last])
