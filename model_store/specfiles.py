"""Find the files that a spec names, give them their names in the archive, and keep them inside the spec's folder."""

from __future__ import annotations

import json
import os
from pathlib import Path, PurePosixPath
from typing import Any

from model_store import errors, layout

SKIPPED = frozenset({"__pycache__", "__MACOSX"})
"""Folders that are never packed; neither is anything whose name begins with a dot."""


class Files:
    """Collects name in the archive → file on disk, for one spec."""

    def __init__(self, *, source: Path, allow_outside: bool) -> None:
        self._source = source
        self._folder = source.resolve().parent
        self._allow_outside = allow_outside
        self.found: dict[str, Path] = {}

    def error(self, field: str, problem: str, fix: str = "") -> errors.SpecError:
        return errors.SpecError(file=self._source, field=field, problem=problem, fix=fix)

    def exists(self, given: str) -> bool:
        return (self._folder / given).exists()

    def add(self, given: str, field: str, *, name: str, ours: bool = False) -> str:
        """Add one file under a chosen name (``ours``: one of the reserved ones)."""
        path = self._inside(given, field)
        if not path.is_file():
            raise self.error(field, f"there is no file {path}", "paths are relative to the folder of this file")
        self._note(name, path, field, ours=ours)
        return name

    def add_tree(self, given: str, field: str) -> str:
        """Add a file or a whole folder under its own relative path; return that name."""
        path = self._inside(given, field)
        name = self.name_of(given, field)
        if path.is_file():
            self._note(name, path, field)
            return name
        if not path.is_dir():
            raise self.error(
                field, f"there is no file or folder {path}", "paths are relative to the folder of this file"
            )
        before = len(self.found)
        for folder, subfolders, names in os.walk(path):
            subfolders[:] = sorted(each for each in subfolders if each not in SKIPPED and not each.startswith("."))
            for each in sorted(names):
                if each.startswith(".") or each.endswith(".pyc"):
                    continue
                file = Path(folder, each)
                self._contained(file, field)
                self._note(f"{name}/{file.relative_to(path).as_posix()}", file, field)
        if len(self.found) == before:
            raise self.error(field, f"the folder {path} holds no files")
        return name

    def name_of(self, given: str, field: str) -> str:
        """The name in the archive of a path as the spec gives it: unchanged, or its last part if it lies outside."""
        pure = PurePosixPath(given)
        name = pure.name if pure.is_absolute() or ".." in pure.parts else pure.as_posix()
        problem = layout.problem_with(name)
        if problem is not None:
            raise self.error(field, f"{given!r} cannot be packed: {problem}")
        return name

    def read_text(self, given: str, field: str) -> str:
        path = self._inside(given, field)
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise self.error(field, f"cannot read {path} ({error})") from error

    def read_json(self, given: str, field: str) -> Any:
        try:
            return json.loads(self.read_text(given, field))
        except json.JSONDecodeError as error:
            raise self.error(field, f"{given} is not JSON ({error})") from error

    def _inside(self, given: str, field: str) -> Path:
        path = self._folder / given
        self._contained(path, field)
        return path

    def _contained(self, path: Path, field: str) -> None:
        try:
            target = path.resolve()
        except (OSError, RuntimeError) as error:  # a circle of links is a RuntimeError
            raise self.error(field, f"{path} cannot be followed ({error})", "name a file") from error
        if not self._allow_outside and not target.is_relative_to(self._folder):
            raise self.error(
                field,
                f"{path} leads out of {self._folder}",
                "copy it beside this file, or allow files from outside (slipway push --allow-outside)",
            )

    def _note(self, name: str, path: Path, field: str, *, ours: bool = False) -> None:
        problem = layout.problem_with(name) or (None if ours else layout.reserved(name))
        if problem is not None:
            raise self.error(field, f"{name!r} cannot be packed: {problem}", "rename the file")
        before = self.found.setdefault(name, path)
        if before.resolve() != path.resolve():
            raise self.error(field, f"both {before} and {path} would be {name} in the archive", "rename one of them")
