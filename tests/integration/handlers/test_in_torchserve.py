"""Handlers in a real TorchServe: what its Java half does with their answers is not to be guessed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from handlers import errors
from tests.integration.handlers import rig
from tests.support import waiting

pytestmark = pytest.mark.integration

OWN = """
import logging, os, sys
from handlers import base

class Echo(base.Handler):
    streams = True

    def decode(self, item):
        text = item.text()
        if text == "bad":
            raise base.InvalidInput("the text is bad")
        return text

    def infer(self, batch):
        if "boom" in batch:
            raise ValueError("boom")
        if "exit" in batch:
            sys.exit(3)
        if "print" in batch:
            for _ in range(20_000):
                print("y" * 250)
            print("[METRICS]forged.Count:5|#Level:Model|#type:COUNTER|#hostname:x,1,2")
            logging.info("[METRICS]forged.Count:5|#Level:Model|#type:COUNTER|#hostname:x,1,2")
        return [{"text": "x" * 3_000_000 if text == "long" else text} for text in batch]

    def infer_streaming(self, batch, emit):
        for number in range(3):
            for index, text in enumerate(batch):
                emit(index, {"piece": number})
        return self.infer(batch)
"""

OLD = """
import json

class Old(object):
    def initialize(self, context):
        self.version = context.manifest["model"]["modelVersion"]

    def handle(self, data, context):
        answers = []
        for index, row in enumerate(data):
            body = row.get("data") or row.get("body")
            if body == {"text": "boom"}:
                raise ValueError("boom")
            answers.append({"got": body if isinstance(body, (dict, str)) else body.decode(), "version": self.version})
        return answers
"""


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[rig.Served]:
    root = tmp_path_factory.mktemp("own")
    with rig.serving(root, files={"own.py": OWN}, settings={"max_response_bytes": 1 << 20}) as served:
        yield served


@pytest.fixture
def worker_lives(own: rig.Served) -> Iterator[None]:
    """The test must not cost the worker its life."""
    before = own.workers
    assert len(before) == 1
    yield
    assert own.workers == before
    assert own.post(b"still here").json() == {"text": "still here"}


def together(served: rig.Served, bodies: list[bytes], content_type: str = "text/plain") -> list[httpx.Response]:
    with ThreadPoolExecutor(len(bodies)) as pool:
        return list(pool.map(lambda body: served.post(body, content_type=content_type), bodies))


@pytest.mark.usefixtures("worker_lives")
def test_bad_items_of_a_batch_get_their_own_errors_over_rest(own: rig.Served) -> None:
    answers = together(own, [b"a", b"bad", b"c", b"boom", b"e", b"exit", b"g", b"long"])
    assert [answer.status_code for answer in answers] == [200, 400, 200, 500, 200, 500, 200, 500]
    for answer in answers:
        if answer.status_code != 200:
            assert answer.headers["content-type"] == "application/problem+json"
            assert answer.content.startswith(errors.PREFIX)
    assert answers[7].json()["limit_bytes"] == 1 << 20
    assert answers[1].json()["version"] == rig.VERSION


@pytest.mark.usefixtures("worker_lives")
def test_grpc_answers_unary_and_streaming_calls_and_carries_errors_as_documents(own: rig.Served) -> None:
    assert own.predict(data=b"a") == b'{"text":"a"}'
    assert own.predict(anything=b"a") == b'{"text":"a"}'
    assert own.stream(data=b"a") == [b'{"text":"a"}']
    assert own.predict(data=b"bad").startswith(errors.PREFIX + b"invalid-input")
    assert own.stream(data=b"bad")[-1].startswith(errors.PREFIX)


@pytest.mark.usefixtures("worker_lives")
def test_a_unary_grpc_call_whose_body_asks_for_a_stream_is_answered_whole(own: rig.Served) -> None:
    assert own.predict(data=b'{"text": "a", "stream": true}') == b'{"text":"a"}'
    assert own.predict(data=b"a", stream=b"true") == b'{"text":"a"}'


@pytest.mark.usefixtures("worker_lives")
def test_streams_come_in_pieces_over_rest_and_grpc(own: rig.Served) -> None:
    asked = b'{"text": "a", "stream": true}'
    answer = own.post(asked, content_type="application/json")
    assert answer.headers["content-type"] == "text/event-stream"
    pieces = [json.loads(line.removeprefix("data: ")) for line in answer.text.split("\n\n") if line]
    assert pieces == [{"piece": 0}, {"piece": 1}, {"piece": 2}, {"text": "a"}]
    streamed = own.stream(**{"data": asked, "slipway-stream": b"true"})
    assert streamed == [b'{"piece":0}', b'{"piece":1}', b'{"piece":2}', b'{"text":"a"}']


@pytest.mark.usefixtures("worker_lives")
def test_streams_and_whole_answers_share_a_batch(own: rig.Served) -> None:
    streamed, whole, refused = together(
        own,
        [b'{"text": "a", "stream": true}', b'{"text": "b"}', b'{"text": "bad", "stream": true}'],
        "application/json",
    )
    assert streamed.text.count("data: ") == 4
    assert whole.json() == {"text": "b"}
    assert refused.status_code == 400


@pytest.mark.usefixtures("worker_lives")
def test_a_handler_that_prints_megabytes_answers_and_forges_no_metric(own: rig.Served) -> None:
    assert own.post(b"print").json() == {"text": "print"}
    waiting.wait_until(lambda: "is dropped" in own.log, timeout_s=20, what="the log to say that output was dropped")
    assert own.log.count("y" * 250) < 1000
    metrics = httpx.get(f"http://127.0.0.1:{own.process.identity.ports.metrics}/metrics", trust_env=False).text
    assert "forged" not in metrics
    assert "ts_inference_requests_total" in metrics


@pytest.mark.usefixtures("worker_lives")
def test_the_open_inference_protocol_in_json_and_binary(own: rig.Served) -> None:
    texts = {"name": "text", "datatype": "BYTES", "shape": [2], "data": ["a", "b"]}
    document = {"id": "7", "inputs": [texts], "outputs": [{"name": "output", "parameters": {"binary_data": True}}]}
    answer = own.post(json.dumps(document).encode(), content_type="application/json", slipway_protocol="oip-v2")
    length = int(answer.headers["inference-header-content-length"])
    head = json.loads(answer.content[:length])
    assert (head["id"], head["model_name"], head["model_version"]) == ("7", rig.MODEL, str(rig.VERSION))
    assert answer.content[length:] == b'\x0c\x00\x00\x00{"text":"a"}\x0c\x00\x00\x00{"text":"b"}'


@pytest.mark.usefixtures("worker_lives")
@pytest.mark.parametrize("header", ["describe", "explain"])
def test_torchserves_own_headers_lead_nowhere(own: rig.Served, header: str) -> None:
    assert own.post(b"a", **{header: "True"}).json() == {"text": "a"}


def test_an_old_torchserve_handler_serves_unchanged(tmp_path: Path) -> None:
    with rig.serving(tmp_path, handler="file:old.py", files={"old.py": OLD}) as served:
        bodies = [b'{"text": "a"}', b'{"text": "boom"}', b'{"text": "c"}']
        answers = together(served, bodies, "application/json")
        assert [answer.status_code for answer in answers] == [200, 500, 200]
        assert answers[0].json() == {"got": {"text": "a"}, "version": str(rig.VERSION)}
        assert served.predict(data=b"a") == b'{"got":"a","version":"7"}'
        assert served.stream(data=b"a") == [b'{"got":"a","version":"7"}']


def test_a_handler_that_raises_at_load_leaves_its_traceback_in_the_log(tmp_path: Path) -> None:
    source = OWN + '\n    def load(self, context):\n        raise RuntimeError("the weights are from Mars")\n'
    with rig.serving(tmp_path, files={"own.py": source}, wait=False) as served:
        waiting.wait_until(lambda: "from Mars" in served.log, timeout_s=90, what="the log to tell why")


def test_missing_requirements_stand_in_the_log_with_what_to_do(tmp_path: Path) -> None:
    with rig.serving(tmp_path, files={"own.py": OWN}, requirements=["nowhere-to-be-found>=3"], wait=False) as served:
        waiting.wait_until(
            lambda: "nowhere-to-be-found>=3 (not installed)" in served.log, timeout_s=90, what="the log to tell why"
        )
