from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from model_store.manifest import ArchiveConfig, GoldenInput, GoldenOutput, Manifest
from serving.agent import replay
from serving.torchserve import client, errors
from tests.unit.agent.world import version


class Process:
    """Answers as it is told, and remembers what it was asked."""

    def __init__(self, *answers: client.Answer | Exception) -> None:
        self._answers = list(answers)
        self.asked: list[tuple[bytes, str]] = []

    async def predict(self, body: bytes, *, content_type: str, timeout_s: float) -> client.Answer:
        self.asked.append((body, content_type))
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "golden").mkdir()
    (tmp_path / "golden" / "cat.jpg").write_bytes(b"cat")
    return tmp_path


def manifest(expected: Any = None) -> Manifest:
    golden = [] if expected is None else [GoldenOutput(file="cat.jpg", expected=expected, tolerance=1e-3)]
    config = ArchiveConfig(handler="image_classifier", golden=[GoldenInput(file="cat.jpg", content_type="image/jpeg")])
    return version(1).manifest.model_copy(update={"config": config, "golden": golden})


def run(process: Process, document: Manifest, folder: Path) -> list[str]:
    return asyncio.run(replay.replay(process, manifest=document, folder=folder))


def test_the_published_answer_within_its_tolerance_passes(folder: Path) -> None:
    process = Process(client.Answer(status=200, body=b'{"cat": 0.9004}'))
    assert run(process, manifest({"cat": 0.9}), folder) == []
    assert process.asked == [(b"cat", "image/jpeg")]


def test_another_answer_is_a_problem_that_names_the_input(folder: Path) -> None:
    (problem,) = run(Process(client.Answer(status=200, body=b'{"cat": 0.1}')), manifest({"cat": 0.9}), folder)
    assert problem.startswith("golden input cat.jpg: ")


def test_without_a_published_answer_200_is_asked_for(folder: Path) -> None:
    assert run(Process(client.Answer(status=200, body=b"\xff")), manifest(), folder) == []
    (problem,) = run(Process(client.Answer(status=503, body=b"no worker")), manifest(), folder)
    assert "503" in problem and "no worker" in problem


def test_a_process_that_does_not_answer_is_a_problem(folder: Path) -> None:
    (problem,) = run(Process(errors.Unreachable("no answer within 60 s")), manifest(), folder)
    assert "no answer within 60 s" in problem


def test_an_input_that_the_archive_lacks_is_a_problem(tmp_path: Path) -> None:
    (problem,) = run(Process(), manifest(), tmp_path)
    assert "cannot be read from the archive" in problem


def test_a_problem_has_a_bound(folder: Path) -> None:
    (problem,) = run(Process(client.Answer(status=500, body=b"x" * 100_000)), manifest(), folder)
    assert len(problem) <= replay.PROBLEM_CHARACTERS
