from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from model_store import archive, errors, manifest, spec
from serving.cli import publishing, replaying
from serving.cli.errors import CliError
from serving.cli.replaying import Replayed
from tests.unit.cli.conftest import Run, World, problem

DIGEST = "ab" * 32
HANDLER = "from handlers import base\n\n\nclass Echo(base.Handler):\n    ...\n"


class FakeStore:
    """Takes everything; keeps what it was given."""

    published: list[manifest.Manifest] = []
    refusal: errors.ModelStoreError | None = None

    def __init__(self, where: object) -> None:
        pass

    def publish(self, archive: Path, document: manifest.Manifest, *, progress: Any = None) -> manifest.Manifest:
        if self.refusal is not None:
            raise self.refusal
        self.published.append(document)
        return document


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> type[FakeStore]:
    """The network's end of a push, and its slow middle, are stood in for."""

    def pack(staged: archive.Staged, destination: Path) -> archive.Packed:
        destination.write_bytes(b"archive")
        return archive.Packed(path=destination, digest=DIGEST, size_bytes=7, unpacked_bytes=7, config=staged.config)

    def stage(source: spec.Spec, folder: Path) -> archive.Staged:
        return archive.Staged(spec=source, folder=folder, config=source.config(), files=())

    class Fresh(FakeStore):
        published: list[manifest.Manifest] = []

    monkeypatch.setattr(publishing.stores, "Store", Fresh)
    monkeypatch.setattr(publishing.archive, "stage", stage)
    monkeypatch.setattr(publishing.archive, "pack", pack)
    monkeypatch.setattr(publishing.replaying, "replay", lambda *_, **__: Replayed())
    monkeypatch.setenv("SLIPWAY_STORE", "s3://bucket")
    return Fresh


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path, "echo")


def write_model(folder: Path, name: str, **more: Any) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "echo.py").write_text(HANDLER)
    (folder / "in.txt").write_text("hello")
    path = folder / "model.yaml"
    path.write_text(json.dumps({"name": name, "handler": "echo.py"} | more))
    return path


def register(world: World, name: str = "echo", version: int = 4) -> None:
    world.json("GET", "/healthz", {"status": "ok"})
    world.json("POST", f"/v1/models/{name}/versions", {"model": name, "version": version, "digest": DIGEST}, status=201)


def test_push_prints_what_scripts_rely_on(world: World, run: Run, store: type[FakeStore], model: Path) -> None:
    register(world)
    result = run("push", str(model), "--output", "json")
    assert result.exit_code == 0
    assert json.loads(result.stdout) == {"model": "echo", "version": 4, "digest": DIGEST}
    (sent,) = world.sent("POST", "/v1/models/echo/versions")
    assert json.loads(sent.content)["manifest"]["digest"] == DIGEST
    assert [document.digest for document in store.published] == [DIGEST]
    assert "no golden inputs" in result.stderr


def test_a_control_plane_that_is_away_is_told_before_anything_is_packed(
    world: World, run: Run, store: type[FakeStore], model: Path
) -> None:
    world.answer("GET", "/healthz", problem(503, "starting"))
    assert run("push", str(model)).exit_code == 5
    assert store.published == []


def test_a_store_that_refuses_registers_nothing(
    world: World, run: Run, store: type[FakeStore], model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(world)
    monkeypatch.setattr(store, "refusal", errors.CredentialsRefused("the store does not accept the credentials"))
    result = run("push", str(model))
    assert result.exit_code == 1
    assert "does not accept the credentials" in result.stderr
    assert world.sent("POST", "/v1/models/echo/versions") == []


def test_a_mistake_in_the_file_is_named_with_its_field(world: World, run: Run, tmp_path: Path) -> None:
    path = write_model(tmp_path, "echo", handlr="x")
    result = run("push", str(path))
    assert result.exit_code == 2
    assert "handlr" in result.stderr
    assert world.requests == []


def test_apply_pushes_and_promotes_every_model_and_tells_which_failed(
    world: World, run: Run, store: type[FakeStore], tmp_path: Path
) -> None:
    write_model(tmp_path, "ignored")
    config = {"model_store": "s3://bucket", "models": {"good": {"handler": "echo.py"}, "bad": {"handler": "echo.py"}}}
    (tmp_path / "serving.yaml").write_text(json.dumps(config))
    for name, state, error in (("good", "done", None), ("bad", "failed", "ValueError: broken")):
        register(world, name, 1)
        rollout = {
            "id": f"ro-{name}",
            "model": name,
            "stage": "production",
            "from_version": None,
            "to_version": 1,
            "state": state,
            "progress": {},
            "error": error,
        }
        world.json("POST", f"/v1/models/{name}/promotions", rollout, status=202)
    result = run("apply", "-f", str(tmp_path / "serving.yaml"), "--output", "json")
    assert result.exit_code == 1
    assert [(each["model"], each["state"]) for each in json.loads(result.stdout)] == [
        ("good", "done"),
        ("bad", "failed"),
    ]
    assert "ValueError: broken" in result.stderr


# --- the replay ----------------------------------------------------------------------------------------------------


def golden_spec(folder: Path, **golden: Any) -> spec.Spec:
    (source,) = spec.load(write_model(folder, "echo", golden=[{"input": "in.txt"} | golden]))
    return source


def interpreter(folder: Path, script: str, *, has_torch: bool = True) -> str:
    """Something that is asked as a Python is: once whether it has torch, once to replay."""
    path = folder / "python"
    path.write_text(
        f'#!/bin/sh\nif [ "$1" = -c ]; then exit {0 if has_torch else 1}; fi\n'
        f"exec {sys.executable} -c '{script}' \"$@\"\n"
    )
    path.chmod(0o755)
    return str(path)


ANSWERS = """
import json, sys
answers = {"outputs": [{"file": "golden/in.txt", "answer": {"n": 1.0}}], "frameworks": {"torch": "2"}}
open(sys.argv[-1], "w").write(json.dumps(answers))
"""


def test_answers_become_golden_outputs_with_their_tolerance(tmp_path: Path) -> None:
    replayed = replaying.replay(golden_spec(tmp_path, tolerance=0.5), tmp_path, python=interpreter(tmp_path, ANSWERS))
    assert replayed == Replayed(
        golden=[manifest.GoldenOutput(file="golden/in.txt", expected={"n": 1.0}, tolerance=0.5)],
        frameworks={"torch": "2"},
    )


def test_an_answer_that_the_author_did_not_expect_is_refused(tmp_path: Path) -> None:
    python = interpreter(tmp_path, ANSWERS)
    assert replaying.replay(golden_spec(tmp_path, expected={"n": 1.0001}), tmp_path, python=python).golden
    with pytest.raises(CliError, match=r"otherwise than model.yaml expects.*expected 2"):
        replaying.replay(golden_spec(tmp_path, expected={"n": 2}), tmp_path, python=python)


def test_a_model_that_does_not_answer_is_refused_in_its_own_words(tmp_path: Path) -> None:
    script = 'import sys; sys.exit("Traceback: deep\\nLoadError: no such file")'
    with pytest.raises(CliError, match="nothing was pushed: LoadError: no such file") as caught:
        replaying.replay(golden_spec(tmp_path), tmp_path, python=interpreter(tmp_path, script))
    assert caught.value.details == "Traceback: deep"


def test_a_model_without_golden_inputs_is_loaded_all_the_same(tmp_path: Path) -> None:
    (source,) = spec.load(write_model(tmp_path, "echo"))
    script = 'import sys; sys.exit("LoadError: the weights are empty")'
    with pytest.raises(CliError, match="does not load here, so nothing was pushed: LoadError: the weights are empty"):
        replaying.replay(source, tmp_path, python=interpreter(tmp_path, script))


def test_a_model_that_ends_the_process_without_a_word_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CliError, match="echo ended the process while it was loaded"):
        replaying.replay(golden_spec(tmp_path), tmp_path, python=interpreter(tmp_path, "raise SystemExit(0)"))


def test_without_torch_the_replay_is_skipped_and_that_is_said(tmp_path: Path) -> None:
    replayed = replaying.replay(golden_spec(tmp_path), tmp_path, python=interpreter(tmp_path, "", has_torch=False))
    assert replayed.golden == []
    assert "has no torch" in replayed.skipped
