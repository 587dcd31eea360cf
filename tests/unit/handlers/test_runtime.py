from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from handlers import errors, replay, runtime

MakeContext = Callable[..., Any]
MakeFolder = Callable[..., Path]

OWN = """
from handlers import base

class Echo(base.Handler):
    def load(self, context):
        self.seen = []
        self.greeting = context.options.get("greeting", "hello")

    def decode(self, item):
        text = item.text()
        if text == "bad":
            raise base.InvalidInput("bad")
        return text

    def infer(self, batch):
        self.seen.append(len(batch))
        return [{"said": f"{self.greeting} {text}"} for text in batch]
"""


@pytest.fixture(autouse=True)
def clean_imports(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Each archive is imported as a replica would: from nothing."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name in ("own", "helper", "net"):
            del sys.modules[name]


def test_a_plain_file_loads_warms_up_and_answers(archive_folder: MakeFolder, context: MakeContext) -> None:
    folder = archive_folder(
        handler="file:own.py", files={"own.py": OWN, "golden/a.txt": "world"}, options={"greeting": "hi"},
        golden=[{"file": "a.txt", "content_type": "text/plain"}],
        runtime={"model": "echo", "version": 3, "threads": 1},
    )  # fmt: skip
    made = context(folder, batch_size=4)
    worker: Any = runtime.load(folder, made)
    assert worker._batcher.handler.seen == [1, 4]
    answers = worker.handle([{"body": b"a"}, {"body": b"bad"}, {"body": b"c"}], made)
    assert answers[0] == b'{"said":"hi a"}'
    assert made.get_response_status(1)[0] == 400
    assert json.loads(answers[1])["model"] == "echo"
    assert [made.get_response_status(index)[0] for index in (0, 2)] == [200, 200]


def test_files_of_the_archive_import_each_other(archive_folder: MakeFolder, context: MakeContext) -> None:
    files = {"own.py": "import helper\n" + OWN.replace('"hello"', "helper.WORD"), "helper.py": "WORD = 'moin'"}
    folder = archive_folder(handler="file:own.py", files=files)
    made = context(folder)
    assert runtime.load(folder, made).handle([{"body": b"x"}], made) == [b'{"said":"moin x"}']


def test_a_golden_input_that_is_not_answered_refuses_to_load(archive_folder: MakeFolder, context: MakeContext) -> None:
    folder = archive_folder(
        handler="file:own.py", files={"own.py": OWN, "golden/a.txt": "bad"},
        golden=[{"file": "a.txt", "content_type": "text/plain"}],
    )  # fmt: skip
    with pytest.raises(errors.LoadError, match=r"a\.txt is answered 400"):
        runtime.load(folder, context(folder))


def test_an_old_handler_is_warmed_up_too(archive_folder: MakeFolder, context: MakeContext) -> None:
    source = 'def handle(data, context):\n    if data:\n        raise ValueError("not today")\n'
    folder = archive_folder(
        handler="file:own.py", files={"own.py": source, "golden/a.txt": "x"}, golden=[{"file": "a.txt"}]
    )
    with pytest.raises(errors.LoadError, match="not today"):
        runtime.load(folder, context(folder))


@pytest.mark.parametrize(
    ("requirements", "words"),
    [
        (["a-package-that-is-nowhere>=3"], "a-package-that-is-nowhere>=3 .not installed"),
        (["numpy<1"], "numpy<1 .installed: "),
        (["not a requirement"], "no valid requirement"),
    ],
)
def test_missing_requirements_are_named_with_what_to_do(
    requirements: list[str], words: str, archive_folder: MakeFolder, context: MakeContext
) -> None:
    folder = archive_folder(handler="file:own.py", files={"own.py": OWN}, requirements=requirements)
    with pytest.raises(errors.LoadError, match=rf"(?s){words}.*install"):
        runtime.load(folder, context(folder))


def test_requirements_that_are_met_or_not_meant_for_this_machine_load(
    archive_folder: MakeFolder, context: MakeContext
) -> None:
    given = ["numpy>=1", 'a-package-that-is-nowhere; sys_platform == "win32"']
    folder = archive_folder(handler="file:own.py", files={"own.py": OWN}, requirements=given)
    runtime.load(folder, context(folder))


@pytest.mark.parametrize(
    ("files", "handler", "words"),
    [
        ({}, "file:own.py", "not in the archive"),
        ({}, "file:../own.py", "outside"),
        ({}, "object_detector", "no built-in handler"),
        ({"own.py": "import nothing_like_this"}, "file:own.py", "nothing_like_this"),
        ({"own.py": "import sys; sys.exit(0)"}, "file:own.py", "SystemExit: 0"),
        ({"own.py": OWN.replace("self.seen = []", "raise SystemExit(3)")}, "file:own.py", "ended the process.*3"),
        ({"own.py": OWN + OWN.replace("Echo", "Other")}, "file:own.py", "2 handlers"),
        ({"own.py": OWN[: OWN.index("    def infer")]}, "file:own.py", r"Echo in file:own.py has no infer\(batch\)"),
    ],
)
def test_a_handler_that_cannot_be_found_is_told(
    files: dict[str, str], handler: str, words: str, archive_folder: MakeFolder, context: MakeContext
) -> None:
    folder = archive_folder(handler=handler, files=files)
    with pytest.raises(errors.LoadError, match=words):
        runtime.load(folder, context(folder))


def test_a_newer_archive_is_refused(archive_folder: MakeFolder, context: MakeContext) -> None:
    folder = archive_folder(handler="file:own.py", files={"own.py": OWN})
    (folder / "slipway.json").write_text(json.dumps({"handler_api": 99, "handler": "file:own.py"}))
    with pytest.raises(errors.LoadError, match="upgrade"):
        runtime.load(folder, context(folder))


def test_over_grpc_the_end_of_a_stream_is_marked_and_over_rest_it_is_not(
    archive_folder: MakeFolder, context: MakeContext
) -> None:
    folder = archive_folder(handler="file:own.py", files={"own.py": OWN})
    made = context(folder, [{"Host": "x", "body": {"content-type": "text/plain"}}, {"body": {"content-type": ""}}])
    runtime.load(folder, made).handle([{"body": b"a"}, {"body": b"b"}], made)
    assert "ts_stream_next" not in made.get_response_headers(0)
    assert made.get_response_headers(1)["ts_stream_next"] == "false"


@pytest.mark.parametrize(
    "source", [OWN, 'def handle(data, context):\n    return [b\'{"said":"hello x"}\' for _ in data or []]\n']
)
def test_replay_writes_answers_and_frameworks(source: str, archive_folder: MakeFolder, tmp_path: Path) -> None:
    folder = archive_folder(
        handler="file:own.py", files={"own.py": source, "golden/a.txt": "x"},
        golden=[{"file": "a.txt", "content_type": "text/plain"}],
    )  # fmt: skip
    assert replay.main([str(folder), "--output", str(tmp_path / "out.json")]) == 0
    written = json.loads((tmp_path / "out.json").read_text())
    assert written["outputs"] == [{"file": "a.txt", "answer": {"said": "hello x"}}]
    assert "torch" in written["frameworks"]


def test_replay_says_why_a_model_does_not_load(
    archive_folder: MakeFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = OWN.replace("self.seen = []", 'raise RuntimeError("the weights are from Mars")')
    folder = archive_folder(handler="file:own.py", files={"own.py": source})
    assert replay.main([str(folder), "--output", str(tmp_path / "out.json")]) != 0
    assert "the weights are from Mars" in capsys.readouterr().err
    assert not (tmp_path / "out.json").exists()


class Ended(BaseException):
    """Stands in for the end of the process."""


@pytest.mark.parametrize("source", [OWN, "def handle(data, context):\n    pass\n"])
def test_a_worker_that_loses_its_gpu_answers_the_batch_with_503_and_ends(
    source: str, archive_folder: MakeFolder, context: MakeContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = 'raise RuntimeError("CUDA error: device-side assert triggered")'
    source = source.replace("self.seen.append(len(batch))", lost).replace("    pass", f"    if data: {lost}")
    folder = archive_folder(handler="file:own.py", files={"own.py": source})
    sent: list[bytes] = []
    codes: list[int] = []

    def end(code: int) -> None:
        codes.append(code)
        raise Ended

    monkeypatch.setattr(runtime.os, "_exit", end)
    monkeypatch.setattr(runtime.output, "bound", lambda: None)
    made = context(folder, [{"Host": "x"}] * 2)
    made.cl_socket = SimpleNamespace(sendall=sent.append)
    handle = runtime.entry(str(folder / "slipway_handler.py"))
    assert handle(None, made) is None
    with pytest.raises(Ended):
        handle([{"body": b"a"}, {"body": b"b"}], made)
    assert codes == [runtime.EXIT_CUDA]
    assert bytes(sent[0]).count(errors.PREFIX + b'worker-lost","status":503') == 2
