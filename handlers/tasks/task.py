"""What all tasks share: a tokenizer and a model from a folder, limits, and padded batches."""

from __future__ import annotations

from typing import Any

import torch
import transformers

from handlers import errors, loading
from handlers.base import Emit, Item, LoadContext
from handlers.engines import eager

MAX_CHARACTERS = 100_000
"""Default limit of a text's length: tokenizing is linear, but a megabyte of it still holds up a batch."""

OPTIONS = frozenset({"task", "max_length", "truncation", "max_characters"})

# A progress bar for each load is noise in a worker's log.
transformers.utils.logging.disable_progress_bar()
transformers.utils.logging.set_verbosity_error()

UNBOUNDED = 1_000_000
"""Tokenizers without a limit of their own report an absurd number; past this it is none."""


class Task:
    """Base of the tasks.

    Raises:
        LoadError: the folder cannot be loaded, or an option is wrong.
    """

    own_options: frozenset[str] = frozenset()
    auto: Any = transformers.AutoModel
    padding_side: str | None = None

    def __init__(self, context: LoadContext) -> None:
        folder = str(context.model_file)
        self.options = context.options
        loading.check_options(self.options, known=OPTIONS | self.own_options)
        self.device = context.device
        try:
            self.tokenizer: Any = transformers.AutoTokenizer.from_pretrained(
                folder, local_files_only=True, trust_remote_code=False, use_fast=True
            )
            # Transformers itself reads safetensors, or pickled weights with weights_only.
            model = self.auto.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        except Exception as error:
            raise errors.LoadError(
                f"{type(self).__name__} cannot be loaded from {context.model_file}: {type(error).__name__}: {error}"
            ) from error
        if not self.tokenizer.is_fast:
            raise errors.LoadError("the tokenizer has no tokenizer.json; save it with a fast tokenizer")
        if self.padding_side is not None:
            self.tokenizer.padding_side = self.padding_side
        if self.tokenizer.pad_token is None:
            self.tokenizer.pad_token = self.tokenizer.eos_token or self.tokenizer.unk_token
        model = model.eval().to(context.device)
        self.model: Any = model
        self.config: Any = model.config
        self.engine = eager.Eager(model, device=context.device)
        self.max_length = self._max_length()
        self.truncation = self.options.get("truncation", "truncate")
        if self.truncation not in ("truncate", "error"):
            raise errors.LoadError(f"option truncation is {self.truncation!r}; use truncate or error")
        self.max_characters = self.whole("max_characters", MAX_CHARACTERS)
        # False: all is attended; without it a model whose tokenizer gives token_type_ids would refuse them.
        self._accepted = set(self.tokenizer.model_input_names)

    # --- the task's own ---------------------------------------------------------------------------------------------

    def decode(self, item: Item) -> Any:
        """One item as what ``infer`` takes; a text unless the task says otherwise."""
        return self.check(item.text())

    def infer(self, batch: list[Any], emit: Emit | None) -> list[Any]:
        """Answer a batch, in order."""
        raise TypeError(f"{type(self).__name__} defines no infer")

    def tensors(self, outputs: list[Any]) -> dict[str, Any]:
        """Open Inference Protocol outputs; empty: each answer as JSON."""
        return {}

    # --- shared -----------------------------------------------------------------------------------------------------

    def whole(self, name: str, default: int) -> int:
        """An option that is a whole number above 0."""
        value = self.options.get(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise errors.LoadError(f"option {name} is {value!r}; write a whole number above 0")
        return value

    def check(self, text: str, *, what: str = "text") -> str:
        """Refuse what is empty or too long.

        Raises:
            InvalidInput: nothing but white space.
            TooLarge: more characters than the limit.
        """
        if not text.strip():
            raise errors.InvalidInput(f"the {what} is empty; send at least one word")
        if len(text) > self.max_characters:
            raise errors.TooLarge(
                f"the {what} has {len(text)} characters, the limit is {self.max_characters}; send less, or raise the "
                "option max_characters in model.yaml",
                limit_characters=self.max_characters,
            )
        return errors.printable(text)

    def encode(self, batch: list[str], pairs: list[str] | None = None, **how: Any) -> tuple[Any, list[bool]]:
        """Tokenize, truncate to ``max_length`` and pad to the longest of the batch.

        Returns:
            The tokenizer's encoding (``input_ids`` and the like: (N, longest) int64 tensors), and for each text
            whether it was cut.

        Raises:
            InvalidInput: cut, and the option ``truncation`` is ``error``.
        """
        encoding = self.tokenizer(
            batch,
            pairs,
            padding=True,
            truncation="only_second" if pairs is not None else True,
            max_length=self.max_length,
            return_tensors="pt",
            **how,
        )
        cut = [bool(each.overflowing) for each in encoding.encodings]
        if self.truncation == "error" and any(cut):
            # The batch is then repeated item by item, so only the guilty one is refused.
            raise errors.InvalidInput(
                f"the text is longer than the model's {self.max_length} tokens; send less, or set the option "
                "truncation: truncate in model.yaml",
                limit_tokens=self.max_length,
            )
        return encoding, cut

    def run(self, encoding: Any) -> Any:
        """The model's output for an encoding; only inputs that it takes are passed on."""
        inputs = {name: self.engine.to_device(tensor) for name, tensor in encoding.items() if name in self._accepted}
        return self.engine.run(**inputs)

    def label(self, index: int) -> str:
        names: dict[Any, str] = self.config.id2label or {}
        return str(names.get(index, names.get(str(index), f"LABEL_{index}")))

    def _max_length(self) -> int:
        known = [
            limit
            for limit in (self.tokenizer.model_max_length, getattr(self.config, "max_position_embeddings", None))
            if isinstance(limit, int) and 0 < limit < UNBOUNDED
        ]
        longest = min(known, default=512)
        # RoBERTa counts positions from padding_idx + 1; its tokenizer says 512 where the table has 514.
        wanted = self.whole("max_length", longest)
        if wanted > longest:
            raise errors.LoadError(f"option max_length is {wanted}, the model reads {longest} tokens at most")
        return wanted


def finite(logits: torch.Tensor) -> list[bool]:
    """(N, …) → for each row whether all of it is finite."""
    return torch.isfinite(logits.flatten(1)).all(dim=1).tolist()


def not_finite() -> errors.BadOutput:
    return errors.BadOutput("the model's output is not finite (NaN or infinity) for this text")
