"""Text that goes on from a prompt, whole or token by token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import transformers

from handlers import errors
from handlers.base import Emit, Item, LoadContext
from handlers.tasks import task

NUMBERS = {"temperature": (0.0, 10.0), "top_p": (0.0, 1.0)}
"""Sampling settings that a request may bring, with their ranges."""


@dataclass(frozen=True, kw_only=True)
class Prompt:
    text: str
    max_new_tokens: int
    temperature: float
    top_p: float


class TextGeneration(task.Task):
    """Takes a text, or ``{"text", "max_new_tokens", "temperature", "top_p", "stream"}``.

    Answers ``{"text", "tokens", "finish_reason", "truncated"}``; ``finish_reason`` is ``stop`` (the model ended) or
    ``length``. With ``"stream": true`` pieces ``{"token": "…"}`` come first. Temperature 0 (the default) is greedy.

    Options: ``max_new_tokens`` (default 64, and the limit for requests).
    """

    own_options = frozenset({"max_new_tokens"})
    auto = transformers.AutoModelForCausalLM
    padding_side = "left"

    def __init__(self, context: LoadContext) -> None:
        super().__init__(context)
        self._limit = self.whole("max_new_tokens", 64)
        if self._limit >= self.max_length:
            raise errors.LoadError(
                f"option max_new_tokens is {self._limit}, the model reads {self.max_length} tokens with its prompt"
            )
        self._window = self.max_length
        # A prompt and what follows it share the model's window; a prompt loses its beginning.
        self.max_length -= self._limit
        self.tokenizer.truncation_side = "left"
        eos: Any = self.model.generation_config.eos_token_id
        if eos is None:
            eos = self.tokenizer.eos_token_id
        self._ends = set(eos if isinstance(eos, list) else [eos]) - {None}

    def decode(self, item: Item) -> Prompt:
        settings = {name: item.option(name) for name in (*NUMBERS, "max_new_tokens")}
        wanted = _number(settings["max_new_tokens"], "max_new_tokens", 1, self._limit, self._limit)
        return Prompt(
            text=self.check(item.text()),
            max_new_tokens=int(wanted),
            **{name: _number(settings[name], name, *NUMBERS[name], NUMBERS[name][0] if name == "temperature" else 1.0)
               for name in NUMBERS},
        )  # fmt: skip

    def infer(self, batch: list[Prompt], emit: Emit | None) -> list[Any]:
        encoding, cut = self.encode([prompt.text for prompt in batch])
        made, broken = self._generate(batch, encoding, emit)
        answers: list[Any] = []
        for row, (tokens, was_cut) in enumerate(zip(made, cut, strict=True)):
            if row in broken:
                answers.append(task.not_finite())
                continue
            ended = bool(tokens) and tokens[-1] in self._ends
            text = self.tokenizer.decode(tokens, skip_special_tokens=True)
            reason = "stop" if ended else "length"
            answers.append({"text": text, "tokens": len(tokens), "finish_reason": reason, "truncated": was_cut})
        return answers

    def _generate(self, batch: list[Prompt], encoding: Any, emit: Emit | None) -> tuple[list[list[int]], set[int]]:
        """Token by token for the whole batch, with the model's own cache; ends when every prompt has ended.

        Returns:
            The tokens of each row, and the rows whose logits were not finite.
        """
        mask = self.engine.to_device(encoding["attention_mask"])
        inputs = self.engine.to_device(encoding["input_ids"])
        # Left padding must not count as positions.
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        cache: Any = None
        made: list[list[int]] = [[] for _ in batch]
        written = [""] * len(batch)
        open_rows = set(range(len(batch)))
        broken: set[int] = set()
        while open_rows:
            output = self.engine.run(
                input_ids=inputs,
                attention_mask=mask,
                **({"position_ids": positions} if self._takes_positions else {}),
                past_key_values=cache,
                use_cache=True,
            )
            cache = output.past_key_values
            logits = output.logits[:, -1].float()
            finite = task.finite(logits)
            broken |= {row for row in open_rows if not finite[row]}
            open_rows -= broken
            logits = logits.nan_to_num()
            chosen = [_choose(logits[row], batch[row]) for row in range(len(batch))]
            for row in sorted(open_rows):
                made[row].append(chosen[row])
                if emit is not None:
                    written[row] = self._emit_piece(row, made[row], written[row], emit)
                if chosen[row] in self._ends or len(made[row]) >= batch[row].max_new_tokens:
                    open_rows.discard(row)
            inputs = torch.tensor(chosen, device=mask.device).unsqueeze(1)
            mask = torch.cat([mask, mask.new_ones(len(batch), 1)], dim=1)
            positions = positions[:, -1:] + 1
        return made, broken

    def _emit_piece(self, row: int, tokens: list[int], written: str, emit: Emit) -> str:
        """Send what is new; a character whose bytes are still incomplete waits for the next token."""
        text = self.tokenizer.decode(tokens, skip_special_tokens=True)
        if text.endswith("\ufffd") or text == written:
            return written
        emit(row, {"token": text[len(written) :]})
        return text

    @property
    def _takes_positions(self) -> bool:
        import inspect

        return "position_ids" in inspect.signature(self.model.forward).parameters


def _choose(logits: torch.Tensor, prompt: Prompt) -> int:
    """(V,) logits → one token: the best, or a sample from the nucleus (Holtzman et al., 2020)."""
    if prompt.temperature == 0:
        return int(logits.argmax())
    probabilities = (logits / prompt.temperature).softmax(0)
    if prompt.top_p < 1:
        values, indices = probabilities.sort(descending=True)
        # The token that crosses the threshold is kept, so at least one always is.
        values[values.cumsum(0) - values >= prompt.top_p] = 0
        return int(indices[torch.multinomial(values, 1)])
    return int(torch.multinomial(probabilities, 1))


def _number(value: Any, name: str, low: float, high: float, default: float) -> float:
    if value is None:
        return default
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = float("nan")
    if isinstance(value, bool) or not low <= number <= high:
        raise errors.InvalidInput(f"{name} is {value!r}; send a number from {low:g} to {high:g}")
    return number
