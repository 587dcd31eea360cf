"""What a person writes to push a model: ``model.yaml`` for one, or the seed's config file for several.

Both become the same :class:`Spec`, in which every file has its name in the archive and its path on disk. Nothing is
read from outside the file's own folder unless the caller allows it: a model.yaml out of a stranger's repository must
not carry somebody's keys into a bucket.
"""

from __future__ import annotations

import dataclasses
import json
import mimetypes
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pydantic
import yaml
from pydantic import BaseModel, ConfigDict

from model_store import errors, layout, manifest, settings, specfiles, yamls

Form = TypeVar("Form", bound=BaseModel)

BUILTIN_HANDLERS = ("image_classifier", "transformer")
"""Handlers that come with Slipway; any other handler is a ``.py`` file."""

CHECKPOINT_SUFFIXES = (".pth", ".pt", ".safetensors", ".bin", ".ckpt")
TORCHVISION_BUILDER = re.compile(
    r"^(alexnet|convnext|densenet|efficientnet|googlenet|inception_v3|maxvit|mnasnet|mobilenet|regnet|resnet|resnext"
    r"|shufflenet|squeezenet|swin|vgg|vit|wide_resnet)[a-z0-9_]*$"
)
"""Families of torchvision's classification builders, told by name: this package does not import torchvision."""


@dataclass(frozen=True, kw_only=True)
class Golden:
    """A golden input as its author gave it; ``expected`` is ``None`` until somebody replays it."""

    file: str
    content_type: str
    expected: Any = None
    tolerance: float = 1e-3


@dataclass(frozen=True, kw_only=True)
class Spec:
    """One model, ready to be staged.

    Attributes:
        source: the file that it was read from.
        files: name in the archive → file on disk; handler, weights, architecture and golden inputs included.
        model_file: the weights' file or folder as named in the archive.
        missing_weights: object key in ``store_url`` of weights that do not lie beside ``source``:
            :func:`with_weights` completes the spec.
    """

    name: str
    source: Path
    handler: str
    description: str = ""
    model_file: str | None = None
    architecture: str | None = None
    files: Mapping[str, Path] = field(default_factory=dict[str, Path])
    requirements: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    pool: str = "cpu"
    serving: manifest.Serving = field(default_factory=manifest.Serving)
    signature: manifest.Signature = field(default_factory=manifest.Signature)
    golden: tuple[Golden, ...] = ()
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])
    store_url: str | None = None
    missing_weights: str | None = None

    def config(self) -> manifest.ArchiveConfig:
        """What ``slipway.json`` will say."""
        return manifest.ArchiveConfig(
            handler=self.handler,
            model_file=self.model_file,
            architecture=self.architecture,
            options=dict(self.options),
            signature=self.signature,
            golden=[manifest.GoldenInput(file=each.file, content_type=each.content_type) for each in self.golden],
            requirements=list(self.requirements),
        )


class _Form(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _Golden(_Form):
    input: str
    content_type: str | None = None
    expected: Any = None
    tolerance: float = pydantic.Field(default=1e-3, ge=0)


class _SeedModel(_Form):
    """What both forms know about a model."""

    description: str = ""
    handler: str
    model_file: str | None = None
    architecture: str | None = None
    files: list[str] | dict[str, str] = []
    requirements: list[str] | str = []
    options: dict[str, Any] = {}
    pool: manifest.ModelName = "cpu"
    serving: manifest.Serving = manifest.Serving()
    signature: manifest.Signature = manifest.Signature()
    golden: list[_Golden] = []
    metrics: dict[str, float] | str = {}


class _Model(_SeedModel):
    name: manifest.ModelName


class _Seed(_Form):
    model_store: str
    models: dict[manifest.ModelName, _SeedModel] = pydantic.Field(min_length=1)


def load(path: Path, *, allow_outside: bool = False) -> list[Spec]:
    """Read a ``model.yaml`` (one model) or a seed config (``model_store`` and ``models``).

    Args:
        allow_outside: accept absolute paths, ``..`` and symbolic links that leave the file's folder.

    Raises:
        SpecError: the file, the field, what is wrong with it and how to mend it.
    """
    raw = _read(path)
    if "models" in raw or "model_store" in raw:
        seed = _validate(_Seed, raw, path)
        try:
            settings.split_url(seed.model_store)
        except errors.SettingsError as error:
            raise errors.SpecError(file=path, field="model_store", problem=str(error)) from error
        return [
            _build(path, name, model, at=f"models.{name}.", store_url=seed.model_store, outside=allow_outside)
            for name, model in seed.models.items()
        ]
    model = _validate(_Model, raw, path)
    return [_build(path, model.name, model, at="", store_url=None, outside=allow_outside)]


def with_weights(spec: Spec, weights: Path) -> Spec:
    """The spec with its missing weights at ``weights``, where a caller downloaded them to."""
    if spec.missing_weights is None or spec.model_file is None:
        return spec
    return dataclasses.replace(spec, missing_weights=None, files={**spec.files, spec.model_file: weights})


def torchvision_builder(model_file: str) -> str | None:
    """``resnet50.pth`` → ``torchvision:resnet50``; ``None`` for a name that is no builder's."""
    name = Path(model_file)
    if name.suffix in CHECKPOINT_SUFFIXES and TORCHVISION_BUILDER.match(name.stem):
        return f"torchvision:{name.stem}"
    return None


def _read(path: Path) -> dict[str, Any]:
    try:
        raw: Any = yamls.load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise errors.SpecError(file=path, field="", problem="there is no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise errors.SpecError(file=path, field="", problem=f"cannot be read ({error})") from error
    except yaml.YAMLError as error:
        raise errors.SpecError(file=path, field="", problem=f"is not YAML: {error}") from error
    if not isinstance(raw, dict):
        raise errors.SpecError(
            file=path, field="", problem="holds no mapping", fix="start it with 'name:' and 'handler:' lines"
        )
    return {str(key): value for key, value in raw.items()}


def _validate(form: type[Form], raw: dict[str, Any], path: Path) -> Form:
    try:
        return form.model_validate(raw)
    except pydantic.ValidationError as error:
        # A misspelt field shows as two mistakes: one that is unknown, and one that is missing.
        first = min(error.errors(), key=lambda each: each["type"] != "extra_forbidden")
        where = ".".join(str(part) for part in first["loc"])
        known = ", ".join(form.model_fields)
        fix = {
            "extra_forbidden": f"remove it or correct its spelling (known at the top: {known})",
            "missing": "add it",
            "string_pattern_mismatch": "a name has lower-case letters, digits, '.', '_' and '-', 63 at most,"
            " and starts and ends with a letter or digit",
        }.get(first["type"], f"got {first['input']!r}")
        more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
        raise errors.SpecError(file=path, field=where, problem=first["msg"] + more, fix=fix) from error


def _build(path: Path, name: str, form: _SeedModel, *, at: str, store_url: str | None, outside: bool) -> Spec:
    files = specfiles.Files(source=path, allow_outside=outside)
    handler = _handler(files, form.handler, f"{at}handler")
    architecture = _architecture(files, form.architecture, f"{at}architecture")
    model_file = missing = None
    if form.model_file is not None:
        if store_url is not None and not files.exists(form.model_file):
            model_file = missing = files.name_of(form.model_file, f"{at}model_file")
        else:
            model_file = files.add_tree(form.model_file, f"{at}model_file")
        if architecture is None and handler == "image_classifier":
            architecture = torchvision_builder(model_file)
    if isinstance(form.files, dict):
        for archive_name, source in form.files.items():
            files.add(source, f"{at}files.{archive_name}", name=archive_name)
    else:
        for index, source in enumerate(form.files):
            files.add_tree(source, f"{at}files.{index}")
    return Spec(
        name=name,
        source=path,
        handler=handler,
        description=form.description,
        model_file=model_file,
        architecture=architecture,
        golden=tuple(_golden(files, each, f"{at}golden.{index}") for index, each in enumerate(form.golden)),
        requirements=_requirements(files, form.requirements, f"{at}requirements"),
        options=form.options,
        pool=form.pool,
        serving=form.serving,
        signature=form.signature,
        metrics=_metrics(files, form.metrics, f"{at}metrics"),
        files=files.found,
        store_url=store_url,
        missing_weights=missing,
    )


def _handler(files: specfiles.Files, handler: str, field: str) -> str:
    if not handler.endswith(".py"):
        if handler not in BUILTIN_HANDLERS:
            raise files.error(
                field,
                f"there is no built-in handler {handler!r}",
                f"use one of {', '.join(BUILTIN_HANDLERS)}, or the path of a .py file",
            )
        return handler
    return f"file:{files.add(handler, field, name=Path(handler).name)}"


def _architecture(files: specfiles.Files, architecture: str | None, field: str) -> str | None:
    if architecture is None:
        return None
    first, _, call = architecture.partition(":")
    if not call.isidentifier() or not (first == "torchvision" or first.endswith(".py")):
        raise files.error(
            field, f"{architecture!r} is no architecture", "write torchvision:BUILDER or FILE.py:CALLABLE"
        )
    if first == "torchvision":
        return architecture
    return f"file:{files.add(first, field, name=Path(first).name)}:{call}"


def _golden(files: specfiles.Files, form: _Golden, field: str) -> Golden:
    name = f"{layout.GOLDEN}/{Path(form.input).name}"
    files.add(form.input, f"{field}.input", name=name, ours=True)
    guessed = mimetypes.guess_type(form.input)[0]
    expected = form.expected
    if isinstance(expected, str) and expected.endswith(".json"):
        expected = files.read_json(expected, f"{field}.expected")
    return Golden(
        file=name,
        content_type=form.content_type or guessed or "application/octet-stream",
        expected=expected,
        tolerance=form.tolerance,
    )


def _requirements(files: specfiles.Files, given: list[str] | str, field: str) -> tuple[str, ...]:
    lines = files.read_text(given, field).splitlines() if isinstance(given, str) else given
    kept = [line.split(" #")[0].strip() for line in lines if line.strip() and not line.strip().startswith("#")]
    for line in kept:
        if line.startswith(("-", ".", "/")) or "://" in line:
            raise files.error(
                field,
                f"{line!r} is not a package requirement",
                "name packages and versions only; options, URLs and paths do not travel with an archive",
            )
    return tuple(kept)


def _metrics(files: specfiles.Files, given: dict[str, float] | str, field: str) -> dict[str, float]:
    if isinstance(given, dict):
        return given
    read: Any = files.read_json(given, field)
    try:
        return pydantic.TypeAdapter(dict[str, float]).validate_python(read)
    except pydantic.ValidationError as error:
        raise files.error(field, f"{given} does not map names to numbers: {json.dumps(read)[:200]}") from error
