"""Models as people write them: a model.yaml, packed by model_store, answered by handlers, held by an agent."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from model_store import archive, provenance, spec
from model_store.manifest import Manifest
from serving.domain.wire import ServerState
from tests.integration.agent.rig import AgentProcess, ControlPlane, Publisher

pytestmark = pytest.mark.integration

WORDS = """
class Words:
    def initialize(self, context):
        self.threads = __import__("torch").get_num_threads()

    def handle(self, data, context):
        return [{"words": len(row["body"]["text"].split())} for row in data]
"""

MODEL = """
name: words
handler: words.py
serving: {workers: 1, threads: 1}
golden:
  - {input: hello.json, expected: {words: 2}}
"""


def pack(folder: Path, publisher: Publisher, *, more: str = "") -> Manifest:
    """Write a model.yaml, pack it and publish it, as ``slipway push`` does."""
    folder.mkdir()
    (folder / "words.py").write_text(WORDS)
    (folder / "hello.json").write_text('{"text": "hello world"}')
    (folder / "model.yaml").write_text(MODEL + more)
    (source,) = spec.load(folder / "model.yaml")
    packed = archive.pack(archive.stage(source, folder / "staged"), folder / "words.mar")
    document = provenance.manifest_for(packed, source)
    return publisher.store.publish(packed.path, document)


def test_a_torchserve_handler_answers_as_its_model_yaml_expects(
    agent: AgentProcess, control_plane: ControlPlane, publisher: Publisher, tmp_path: Path
) -> None:
    control_plane.assign({("words", 7): pack(tmp_path / "words", publisher)})
    agent.start()
    server = control_plane.wait("words", 7, ServerState.READY)
    url = f"http://{server.host}:{server.rest_port}/predictions/words/7"
    answer = httpx.post(url, json={"text": "one two three"}, timeout=20, trust_env=False)
    assert (answer.status_code, answer.json()) == (200, {"words": 3})


def test_a_requirement_that_the_workers_lack_is_named(
    agent: AgentProcess, control_plane: ControlPlane, publisher: Publisher, tmp_path: Path
) -> None:
    more = "requirements: [no-such-distribution-anywhere>=3]\n"
    control_plane.assign({("words", 1): pack(tmp_path / "words", publisher, more=more)})
    agent.start()
    failed = control_plane.wait("words", 1, ServerState.FAILED)
    assert "no-such-distribution-anywhere>=3 (not installed)" in (failed.error or "")
