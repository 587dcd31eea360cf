"""A text as a vector."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from handlers import errors
from handlers.base import Emit, LoadContext
from handlers.tasks import task

POOLINGS = ("mean", "cls", "max")


class Embeddings(task.Task):
    """Answers ``{"embedding": [floats], "truncated"}``.

    Options: ``pooling`` (``mean``, ``cls`` or ``max``) and ``normalize`` (to length one). Without them a folder that
    sentence-transformers wrote decides itself, by its ``modules.json``; any other is mean-pooled and normalized.
    """

    own_options = frozenset({"pooling", "normalize"})

    def __init__(self, context: LoadContext) -> None:
        folder = Path(str(context.model_file))
        told = _sentence_transformers(folder)
        # Its own limit of length is often below the model's.
        options = {**({"max_length": told["max_length"]} if "max_length" in told else {}), **context.options}
        super().__init__(
            LoadContext(
                folder=context.folder,
                device=context.device,
                model_file=context.model_file,
                architecture=context.architecture,
                options=options,
                model=context.model,
                version=context.version,
                threads=context.threads,
            )
        )
        self._pooling = options.get("pooling", told.get("pooling", "mean"))
        if self._pooling not in POOLINGS:
            raise errors.LoadError(f"option pooling is {self._pooling!r}; use one of {', '.join(POOLINGS)}")
        self._normalize = bool(options.get("normalize", told.get("normalize", True)))

    def infer(self, batch: list[str], emit: Emit | None) -> list[Any]:
        encoding, cut = self.encode(batch)
        states = self.run(encoding).last_hidden_state
        vectors = pool(states, encoding["attention_mask"].to(states.device), self._pooling)
        if self._normalize:
            vectors = functional.normalize(vectors, dim=1)
        finite = task.finite(vectors)
        return [
            {"embedding": vector, "truncated": was_cut} if is_finite else task.not_finite()
            for vector, was_cut, is_finite in zip(vectors.cpu().numpy(), cut, finite, strict=True)
        ]

    def tensors(self, outputs: list[Any]) -> dict[str, Any]:
        return {"embedding": np.stack([output["embedding"] for output in outputs])}


def pool(states: torch.Tensor, mask: torch.Tensor, pooling: str) -> torch.Tensor:
    """Token states to one vector a text; padding does not count.

    Args:
        states: (N, L, D) float.
        mask: (N, L), 1 for a token, 0 for padding.
        pooling: ``mean``, ``cls`` or ``max``.

    Returns:
        (N, D) float32.
    """
    states = states.float()
    if pooling == "cls":
        return states[:, 0]
    weights = mask.unsqueeze(-1).float()
    if pooling == "max":
        return states.masked_fill(weights == 0, float("-inf")).amax(dim=1)
    return (states * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1e-9)


def _sentence_transformers(folder: Path) -> dict[str, Any]:
    """What a sentence-transformers folder says about itself; empty for any other."""
    told: dict[str, Any] = {}
    if not (folder / "modules.json").is_file():
        return told
    modules: list[dict[str, Any]] = json.loads((folder / "modules.json").read_text(encoding="utf-8"))
    kinds = {module["type"].rsplit(".", 1)[-1]: module for module in modules}
    told["normalize"] = "Normalize" in kinds
    pooling = folder / kinds["Pooling"]["path"] / "config.json" if "Pooling" in kinds else None
    if pooling is not None and pooling.is_file():
        modes: dict[str, Any] = json.loads(pooling.read_text(encoding="utf-8"))
        names = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls", "pooling_mode_max_tokens": "max"}
        chosen = [name for key, name in names.items() if modes.get(key)]
        if len(chosen) == 1:
            told["pooling"] = chosen[0]
    limits = folder / "sentence_bert_config.json"
    if limits.is_file():
        longest: Any = json.loads(limits.read_text(encoding="utf-8")).get("max_seq_length")
        if isinstance(longest, int):
            told["max_length"] = longest
    return told
