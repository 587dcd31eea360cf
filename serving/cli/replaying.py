"""The model loaded, and its golden inputs answered, on the publisher's machine: in an interpreter that has torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from model_store import golden, manifest, spec
from serving.cli import errors

TIMEOUT_S = 600
"""Loading and answering; models that need longer are pushed with --no-replay."""

LOOK_S = 60
_LOOK = "import importlib.util as i, sys; sys.exit(any(i.find_spec(n) is None for n in ('torch', 'handlers')))"


@dataclass(frozen=True, kw_only=True)
class Replayed:
    """What came out; ``skipped`` says why nothing did."""

    golden: list[manifest.GoldenOutput] = field(default_factory=list[manifest.GoldenOutput])
    frameworks: dict[str, str] = field(default_factory=dict[str, str])
    skipped: str = ""


def replay(source: spec.Spec, folder: Path, *, python: str | None) -> Replayed:
    """Load the model of a staged archive and answer its golden inputs, if it has any.

    Args:
        folder: laid out as the archive.
        python: the interpreter to use; ``None`` is this one.

    Raises:
        CliError: the model does not load, does not answer one, or not as its author expects.
    """
    interpreter = python or sys.executable
    if not _has_torch(interpreter):
        return Replayed(
            skipped=f"{interpreter} has no torch; replicas will be the first to load the model "
            "(SLIPWAY_WORKER_PYTHON names another interpreter)"
        )
    answered = _run(source, folder, interpreter)
    tolerances = {each.file: each.tolerance for each in source.golden}
    outputs = [
        manifest.GoldenOutput(file=each["file"], expected=each["answer"], tolerance=tolerances[each["file"]])
        for each in answered["outputs"]
    ]
    _require_expected(source, {each.file: each.expected for each in outputs})
    return Replayed(golden=outputs, frameworks=answered["frameworks"])


def _has_torch(interpreter: str) -> bool:
    try:
        done = subprocess.run([interpreter, "-c", _LOOK], cwd="/", capture_output=True, timeout=LOOK_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise errors.CliError(f"the interpreter {interpreter} cannot be used: {error}") from error
    return done.returncode == 0


def _run(source: spec.Spec, folder: Path, interpreter: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="slipway-replay-") as private:
        answers = Path(private) / "answers.json"
        command = [interpreter, "-m", "handlers.replay", str(folder), "--output", str(answers)]
        try:
            done = subprocess.run(
                command,
                cwd=folder,
                env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1", "TOKENIZERS_PARALLELISM": "false"},
                capture_output=True,
                text=True,
                errors="replace",
                timeout=TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise errors.CliError(
                f"{source.name} did not load and answer its golden inputs within {TIMEOUT_S} s; nothing was pushed"
            ) from error
        if done.returncode != 0:
            *details, last = (done.stderr.strip() or f"exit status {done.returncode}").splitlines()
            raise errors.CliError(
                f"{source.name} does not {'load and answer its golden inputs' if source.golden else 'load'} here, so "
                f"nothing was pushed: {last}",
                details="\n".join(details),
            )
        if not answers.exists():
            # os._exit(0) ends an interpreter without anybody to tell.
            raise errors.CliError(
                f"{source.name} ended the process while it was loaded here, so nothing was pushed; a handler must not "
                "exit"
            )
        return json.loads(answers.read_text(encoding="utf-8"))


def _require_expected(source: spec.Spec, answers: dict[str, Any]) -> None:
    for each in source.golden:
        if each.expected is None:
            continue
        differences = golden.compare(each.expected, answers.get(each.file), each.tolerance)
        if differences:
            raise errors.CliError(
                f"{source.name} answers {each.file} otherwise than {source.source.name} expects, so nothing was "
                f"pushed: {'; '.join(differences)[:500]}"
            )
