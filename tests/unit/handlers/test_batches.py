from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from handlers import base, batches, errors, items

MakeItem = Callable[..., items.Item]


class Echo(base.Handler):
    """Does what its text says; remembers the batches that it was given."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []

    def decode(self, item: base.Item) -> str:
        text = item.text()
        if text == "refuse":
            raise base.InvalidInput("the text is refuse; send another", hint="other")
        if text == "decode":
            raise KeyError("decode")
        return text

    def infer(self, batch: list[Any]) -> Any:
        self.batches.append(list(batch))
        if "infer" in batch:
            raise ValueError("no such luck")
        if "exit" in batch:
            sys.exit(3)
        if "few" in batch:
            return batch[1:]
        if "none" in batch:
            return None
        if "cuda" in batch:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        return [ValueError("mine alone") if text == "own" else text for text in batch]

    def encode(self, output: Any, item: base.Item) -> Any:
        match output:
            case "encode":
                raise ValueError("cannot encode")
            case "nan":
                return {"scores": [0.5, float("nan")]}
            case "surrogate":
                return {"text": "a\ud800"}
            case "object":
                return {"a": object()}
            case "long":
                return "x" * 5000
            case "numpy":
                return {"values": np.arange(3, dtype=np.float32), "one": np.int64(3)}
            case _:
                return {"text": output}


@pytest.fixture
def handler() -> Echo:
    return Echo()


@pytest.fixture
def batcher(handler: Echo) -> batches.Batcher:
    return batches.Batcher(handler=handler, model="echo", version=4, max_response_bytes=4000)


def problem(response: batches.Response) -> dict[str, Any]:
    assert response.content_type == "application/problem+json"
    assert response.body.startswith(errors.PREFIX)
    found = json.loads(response.body)
    assert found["status"] == response.status
    return found


@pytest.mark.parametrize(
    ("bad", "status", "words"),
    [
        ("refuse", 400, "send another"),
        ("decode", 500, "KeyError"),
        ("infer", 500, "no such luck"),
        ("exit", 500, "SystemExit"),
        ("own", 500, "mine alone"),
        ("encode", 500, "cannot encode"),
        ("nan", 500, "$.scores[1]"),
        ("surrogate", 500, "no JSON"),
        ("object", 500, "no JSON"),
        ("few", 500, "returned 0 answers for a batch of 1"),
    ],
)
def test_one_bad_item_of_eight_gets_its_own_error_and_the_others_their_answers(
    bad: str, status: int, words: str, batcher: batches.Batcher, item: MakeItem
) -> None:
    texts = ["a", "b", "c", bad, "e", "f", "g", "h"]
    responses = batcher.answer([item(text.encode()) for text in texts])
    for text, response in zip(texts, responses, strict=True):
        if text == bad:
            assert response.status == status
            assert words in problem(response)["detail"]
        else:
            assert (response.status, response.body) == (200, b'{"text":"%s"}' % text.encode())


def test_an_error_body_is_compact_and_names_model_version_and_extras_in_order(
    batcher: batches.Batcher, item: MakeItem
) -> None:
    (response,) = batcher.answer([item(b"refuse")])
    assert list(problem(response)) == ["type", "status", "title", "detail", "hint", "model", "version"]
    assert response.body.startswith(b'{"type":"urn:slipway:error:invalid-input","status":400,"title":"')


def test_an_answer_over_the_limit_is_an_error_with_the_limit_in_it(batcher: batches.Batcher, item: MakeItem) -> None:
    long, short = batcher.answer([item(b"long"), item(b"short")])
    assert problem(long)["limit_bytes"] == 4000
    assert short.status == 200


def test_an_answer_that_is_no_list_names_what_it_is(batcher: batches.Batcher, item: MakeItem) -> None:
    (response,) = batcher.answer([item(b"none")])
    assert "NoneType" in problem(response)["detail"]


def test_a_lost_cuda_context_is_fatal_and_running_out_of_memory_is_not(
    batcher: batches.Batcher, item: MakeItem
) -> None:
    with pytest.raises(batches.FatalError):
        batcher.answer([item(b"cuda"), item(b"a")])
    out_of_memory = type("OutOfMemoryError", (RuntimeError,), {})("CUDA error: out of memory")
    assert not batches.is_fatal(out_of_memory)


def test_numpy_values_are_written_as_numbers(batcher: batches.Batcher, item: MakeItem) -> None:
    (response,) = batcher.answer([item(b"numpy")])
    assert json.loads(response.body) == {"values": [0.0, 1.0, 2.0], "one": 3}


def test_instances_are_answered_together_and_the_one_that_fails_is_named(
    batcher: batches.Batcher, handler: Echo, item: MakeItem
) -> None:
    (good,) = batcher.answer([item(b'{"instances": ["a", {"text": "b"}]}', "application/json")])
    assert json.loads(good.body) == {"predictions": [{"text": "a"}, {"text": "b"}]}
    assert handler.batches == [["a", "b"]]
    (bad,) = batcher.answer([item(b'{"instances": ["a", "refuse"]}', "application/json")])
    assert problem(bad)["item"] == 1


def test_a_request_with_many_items_is_cut_into_batches(handler: Echo, item: MakeItem) -> None:
    batcher = batches.Batcher(handler=handler, model="m", version=1, max_response_bytes=1 << 20, batch_size=8)
    (response,) = batcher.answer([item(json.dumps({"instances": ["a"] * 20}).encode(), "application/json")])
    assert len(json.loads(response.body)["predictions"]) == 20
    assert [len(batch) for batch in handler.batches] == [8, 8, 4]


@pytest.mark.parametrize("rows", [0, 1025])
def test_the_number_of_instances_is_limited(rows: int, batcher: batches.Batcher, item: MakeItem) -> None:
    (response,) = batcher.answer([item(json.dumps({"instances": ["a"] * rows}).encode(), "application/json")])
    assert problem(response)["limit_rows"] == 1024


class Streaming(Echo):
    streams = True

    def infer_streaming(self, batch: list[Any], emit: base.Emit) -> Any:
        if "infer" in batch:
            raise ValueError("before any piece")
        for index, text in enumerate(batch):
            emit(index, {"piece": text})
        if "late" in batch:
            raise ValueError("after pieces")
        return self.infer(batch)


@pytest.fixture
def sent() -> list[tuple[int, bytes, str]]:
    return []


@pytest.fixture
def send(sent: list[tuple[int, bytes, str]]) -> batches.Send:
    return lambda index, data, content_type: sent.append((index, data, content_type))


@pytest.fixture
def streaming() -> batches.Batcher:
    return batches.Batcher(handler=Streaming(), model="m", version=1, max_response_bytes=4000)


def ask(text: str, *, stream: bool = True) -> bytes:
    return json.dumps({"text": text, "stream": stream}).encode()


def test_two_clients_that_send_the_same_each_get_their_own_stream(
    streaming: batches.Batcher, item: MakeItem, sent: list[Any], send: batches.Send
) -> None:
    streaming.answer([item(ask("same"), "application/json"), item(ask("same"), "application/json")], send=send)
    assert [index for index, _, _ in sent] == [0, 1]


def test_only_those_who_asked_get_pieces_and_the_rest_whole_answers(
    streaming: batches.Batcher, item: MakeItem, sent: list[Any], send: batches.Send
) -> None:
    responses = streaming.answer(
        [item(ask("a"), "application/json"), item(ask("b", stream=False), "application/json")], send=send
    )
    assert sent == [(0, b'data: {"piece":"a"}\n\n', "text/event-stream")]
    assert responses[0].body == b'data: {"text":"a"}\n\n'
    assert (responses[1].content_type, responses[1].body) == ("application/json", b'{"text":"b"}')


def test_a_failure_before_the_first_piece_spoils_only_its_own_stream(
    streaming: batches.Batcher, item: MakeItem, send: batches.Send
) -> None:
    good, bad = streaming.answer(
        [item(ask("a"), "application/json"), item(ask("infer"), "application/json")], send=send
    )
    assert good.body == b'data: {"text":"a"}\n\n'
    assert bad.status == 500


def test_a_stream_that_breaks_ends_with_the_error_as_its_last_piece(
    streaming: batches.Batcher, item: MakeItem, send: batches.Send
) -> None:
    broken, whole = streaming.answer(
        [item(ask("late"), "application/json"), item(ask("b", stream=False), "application/json")], send=send
    )
    assert broken.status == 200  # the head of the answer has long gone
    assert broken.body.startswith(b"data: " + errors.PREFIX)
    assert whole.body == b'{"text":"b"}'


def test_over_grpc_a_stream_needs_the_gateways_word_that_the_call_can_take_one(
    streaming: batches.Batcher, sent: list[Any], send: batches.Send
) -> None:
    streaming.answer([items.of_request({"data": ask("a")}, {})], send=send)
    assert sent == []
    streaming.answer([items.of_request({"data": ask("a"), "slipway-stream": b"false"}, {})], send=send)
    assert sent == []
    streaming.answer([items.of_request({"data": b"a", "slipway-stream": b"true"}, {})], send=send)
    assert sent == []  # nobody asked
    streaming.answer([items.of_request({"data": ask("a"), "slipway-stream": b"true"}, {})], send=send)
    assert sent == [(0, b'{"piece":"a"}', "application/json")]
