from __future__ import annotations

import json
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from handlers import archive, batches, errors
from handlers.torchserve_adapter import TorchServeWorker

MakeContext = Callable[..., Any]

FUNCTION = """
import torch
seen = []

def handle(data, context):
    if data is None:
        context.loaded = True
        return None
    rows = [row.get("data") or row.get("body") for row in data]
    seen.append(rows)
    answers = []
    for index, row in enumerate(rows):
        if row == b"raise":
            context.set_response_status(418, "", 0)
            data[0].clear()
            raise ValueError("raised at predict")
        if row == b"cuda":
            raise RuntimeError("CUDA error: device-side assert triggered")
        if row == b"exit":
            raise SystemExit(2)
        if row == b"refuse":
            context.set_response_status(400, "no", index)
            context.set_response_content_type(index, "text/plain")
        answers.append({
            b"nan": {"x": float("nan")}, b"surrogate": "a\\ud800", b"object": object(), b"long": "x" * 5000,
            b"json": {"a": [1, 2]}, b"tensor": torch.ones(2), b"bytes": b"raw",
        }.get(row, f"{row.decode()} by {context.get_request_id(index)}"))
    return answers[1:] if b"few" in rows else answers
"""

CLASS = """
class Base:
    def handle(self, data, context):
        return [self.name] * len(data)

class Model(Base):
    def initialize(self, context):
        self.name = context.system_properties["model_dir"].rsplit("/", 1)[-1]
"""


def module(source: str) -> types.ModuleType:
    made = types.ModuleType("user_handler")
    exec(compile(source, "user_handler.py", "exec"), made.__dict__)
    return made


@pytest.fixture
def worker(tmp_path: Path, context: MakeContext) -> TorchServeWorker:
    described = archive.Archive(folder=tmp_path, handler="file:own.py", max_response_bytes=4000)
    return TorchServeWorker(module(FUNCTION), described, context(tmp_path))


def ask(worker: TorchServeWorker, made: Any, *rows: bytes) -> list[tuple[int, bytes]]:
    answers = worker.handle([{"body": row} for row in rows], made)
    return [(made.get_response_status(index)[0], answer) for index, answer in enumerate(answers)]


def test_a_function_is_called_without_data_to_load_and_answers_with_its_context(
    worker: TorchServeWorker, context: MakeContext, tmp_path: Path
) -> None:
    assert ask(worker, context(tmp_path), b"a", b"b") == [(200, b"a by request-0"), (200, b"b by request-1")]


@pytest.mark.parametrize(
    ("bad", "words"),
    [("raise", "raised at predict"), ("exit", "SystemExit"), ("nan", "$.x"), ("object", "no JSON"),
     ("long", "limit is 4000"), ("few", "0 answers for a batch of 1")],
)  # fmt: skip
def test_one_bad_item_of_four_gets_its_own_500(
    bad: str, words: str, worker: TorchServeWorker, context: MakeContext, tmp_path: Path
) -> None:
    made = context(tmp_path)
    answers = ask(worker, made, b"a", b"b", bad.encode(), b"d")
    assert [status for status, _ in answers] == [200, 200, 500, 200]
    assert [body for status, body in answers if status == 200] == [
        b"a by request-0", b"b by request-1", b"d by request-3",
    ]  # fmt: skip
    problem = json.loads(answers[2][1])
    assert words in problem["detail"]
    assert made.get_response_content_type(2) == "application/problem+json"


def test_answers_are_made_safe_and_keep_what_torchserve_does_with_them(
    worker: TorchServeWorker, context: MakeContext, tmp_path: Path
) -> None:
    import io

    made = context(tmp_path)
    answers = [body for _, body in ask(worker, made, b"surrogate", b"json", b"bytes", b"tensor")]
    assert answers[:3] == [b"a?", b'{"a":[1,2]}', b"raw"]
    assert torch.load(io.BytesIO(answers[3])).tolist() == [1, 1]
    assert made.get_response_content_type(1) == "application/json"
    assert made.get_response_content_type(2) is None


def test_a_status_set_by_the_handler_stays_over_rest_and_becomes_a_document_over_grpc(
    worker: TorchServeWorker, context: MakeContext, tmp_path: Path
) -> None:
    made = context(tmp_path, [{"Host": "x"}, {"body": {"content-type": ""}}])
    rest, grpc = ask(worker, made, b"refuse", b"refuse")
    assert rest == (400, b"refuse by request-0")
    assert grpc[1].startswith(errors.PREFIX)
    assert json.loads(grpc[1])["status"] == 400


def test_grpc_streams_end_and_rest_answers_carry_no_mark(
    worker: TorchServeWorker, context: MakeContext, tmp_path: Path
) -> None:
    made = context(tmp_path, [{"Host": "x"}, {}])
    ask(worker, made, b"a", b"raise")
    assert "ts_stream_next" not in made.get_response_headers(0)
    assert made.get_response_headers(1)["ts_stream_next"] == "false"


def test_a_lost_cuda_context_is_fatal(worker: TorchServeWorker, context: MakeContext, tmp_path: Path) -> None:
    with pytest.raises(batches.FatalError):
        worker.handle([{"body": b"cuda"}, {"body": b"a"}], context(tmp_path))


def test_a_class_is_initialized_and_its_bases_do_not_count(context: MakeContext, tmp_path: Path) -> None:
    described = archive.Archive(folder=tmp_path, handler="file:own.py")
    worker = TorchServeWorker(module(CLASS), described, context(tmp_path))
    assert ask(worker, context(tmp_path), b"a") == [(200, tmp_path.name.encode())]


def test_a_subclass_of_torchserves_base_handler_serves_unchanged(context: MakeContext, tmp_path: Path) -> None:
    source = """
import torch
from ts.torch_handler.base_handler import BaseHandler

class Doubler(BaseHandler):
    def initialize(self, context):
        self.initialized, self.device = True, torch.device("cpu")
        self.model = lambda batch: batch * 2

    def preprocess(self, data):
        return torch.tensor([float(row["body"]) for row in data])

    def postprocess(self, data):
        return data.tolist()
"""
    described = archive.Archive(folder=tmp_path, handler="file:own.py")
    worker = TorchServeWorker(module(source), described, context(tmp_path))
    answers = ask(worker, context(tmp_path), b"1", b"what", b"3")
    assert [answers[0], answers[2]] == [(200, b"2.0"), (200, b"6.0")]
    assert answers[1][0] == 500


def test_torchserves_own_refusal_keeps_its_code(context: MakeContext, tmp_path: Path) -> None:
    source = """
from ts.utils.util import PredictionException

def handle(data, context):
    if data is not None:
        raise PredictionException("too strange", 422)
"""
    described = archive.Archive(folder=tmp_path, handler="file:own.py")
    worker = TorchServeWorker(module(source), described, context(tmp_path))
    ((status, body),) = ask(worker, context(tmp_path), b"a")
    assert status == 422
    assert "too strange" in json.loads(body)["detail"]


@pytest.mark.parametrize("source", ["x = 1", "class A:\n    handle = 1\nclass B:\n    handle = 2"])
def test_a_file_without_one_clear_handler_is_refused(source: str, context: MakeContext, tmp_path: Path) -> None:
    described = archive.Archive(folder=tmp_path, handler="file:own.py")
    with pytest.raises(errors.LoadError, match="classes with a handle method"):
        TorchServeWorker(module(source), described, context(tmp_path))
