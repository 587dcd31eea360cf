"""From an archive's names to Python objects: a handler's class, an architecture, its weights."""

from __future__ import annotations

import functools
import importlib.util
import inspect
import json
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from handlers import errors
from handlers.archive import Archive
from handlers.base import Handler, LoadContext

BUILTIN = ("image_classifier", "transformer")


def module_of(archive: Archive, reference: str, *, what: str) -> tuple[ModuleType, str]:
    """Import ``file:NAME.py[:REST]`` out of the archive.

    Returns:
        The module, and what follows the file's name.

    Raises:
        LoadError: the file is missing, or importing it fails (the cause is chained).
    """
    name, _, rest = reference.removeprefix("file:").partition(":")
    path = archive.path(name, what=what)
    if str(archive.folder) not in sys.path:
        # Files beside it are imported by their plain names, as TorchServe's handlers do.
        sys.path.insert(0, str(archive.folder))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise errors.LoadError(f"{what} {name!r} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise errors.LoadError(f"{what} {name} cannot be imported: {type(error).__name__}: {error}") from error
    return module, rest


def native_handler(archive: Archive) -> Handler | ModuleType:
    """The archive's handler: an instance of our base class, or the module of a TorchServe handler.

    Raises:
        LoadError: unknown name, or a module with several handlers.
    """
    if archive.handler == "image_classifier":
        from handlers.image_classifier import ImageClassifier

        return ImageClassifier()
    if archive.handler == "transformer":
        from handlers.transformer import Transformer

        return Transformer()
    if not archive.handler.startswith("file:"):
        raise errors.LoadError(
            f"there is no built-in handler {archive.handler!r}; use {', '.join(BUILTIN)} or a .py file of your own"
        )
    module, _ = module_of(archive, archive.handler, what="handler")
    own = [
        member
        for _, member in inspect.getmembers(module, inspect.isclass)
        if issubclass(member, Handler) and member.__module__ == module.__name__
    ]
    # A class that another one of the file extends is not the one that is meant.
    leaves = [each for each in own if not any(other is not each and issubclass(other, each) for other in own)]
    if len(leaves) > 1:
        raise errors.LoadError(
            f"{archive.handler} defines {len(leaves)} handlers ({', '.join(each.__name__ for each in leaves)}); "
            "keep one in the file"
        )
    if not leaves:
        return module
    if leaves[0].infer is Handler.infer:
        raise errors.LoadError(f"{leaves[0].__name__} in {archive.handler} has no infer(batch); write one")
    return leaves[0]()


def check_options(options: dict[str, Any], *, known: frozenset[str]) -> None:
    """Refuse a misspelt option: ignored, it would change answers without a word.

    Raises:
        LoadError: names it, and what there is.
    """
    unknown = sorted(set(options) - known)
    if unknown:
        raise errors.LoadError(f"unknown option {', '.join(unknown)}; known: {', '.join(sorted(known))}")


def load_module(context: LoadContext, archive: Archive) -> torch.nn.Module:
    """Build the archive's network with its weights, in eval mode, on its device.

    Raises:
        LoadError: weights missing, unsafe, or not fitting the architecture.
    """
    if context.model_file is None and context.architecture is None:
        raise errors.LoadError("the archive has neither model_file nor architecture; name them in model.yaml")
    if context.architecture is None:
        assert context.model_file is not None
        return _scripted(context.model_file, context.device)
    weights = state_dict(context.model_file) if context.model_file is not None else None
    builder = _builder(context, archive, weights)
    try:
        module: Any = builder()
    except Exception as error:
        raise errors.LoadError(
            f"architecture {context.architecture} cannot be built: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(module, torch.nn.Module):
        raise errors.LoadError(f"architecture {context.architecture} gives a {type(module).__name__}, no torch module")
    if weights is not None:
        try:
            module.load_state_dict(weights)
        except RuntimeError as error:
            raise errors.LoadError(f"the weights do not fit {context.architecture}: {error}") from error
    return module.eval().to(context.device)


def state_dict(path: Path) -> dict[str, torch.Tensor]:
    """Read weights without running anything that they contain.

    A checkpoint that holds its weights under ``state_dict`` or ``model``, or under names that begin with
    ``module.`` (DataParallel), is unwrapped.

    Raises:
        LoadError: the file is broken, or holds more than tensors.
    """
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        loaded: Any = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise errors.LoadError(
            f"the weights {path.name} cannot be read ({type(error).__name__}: {error}); save a state_dict with "
            "safetensors.torch.save_file or torch.save"
        ) from error
    for wrapper in ("state_dict", "model"):
        if isinstance(loaded, dict) and isinstance(loaded.get(wrapper), dict):
            loaded = loaded[wrapper]
    if not isinstance(loaded, dict) or not all(isinstance(value, torch.Tensor) for value in loaded.values()):
        raise errors.LoadError(f"the weights {path.name} are no state_dict: a mapping of names to tensors")
    return {name.removeprefix("module."): tensor for name, tensor in loaded.items()}


def class_count(builder: Callable[..., torch.nn.Module], weights: dict[str, torch.Tensor]) -> int | None:
    """Number of classes that weights were trained for.

    The head is the parameter that changes when ``num_classes`` does: names and their order differ between networks
    (and files). Where the builder allows it, nothing is allocated.
    """
    try:
        with torch.device("meta"):
            two, three = (dict(builder(num_classes=count).named_parameters()) for count in (2, 3))
    except (NotImplementedError, RuntimeError):  # it computes with its parameters
        two, three = (dict(builder(num_classes=count).named_parameters()) for count in (2, 3))
    heads = [name for name, tensor in two.items() if tensor.shape != three[name].shape and name in weights]
    # Auxiliary heads have as many classes as the last, which is the one that counts.
    return int(weights[heads[-1]].shape[0]) if heads else None


def read_labels(path: Path) -> list[str]:
    """Labels by class index: a JSON list, a JSON object of index → label (or [id, label]), or lines of text.

    Raises:
        LoadError: none of these.
    """
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".json":
        return [line.strip() for line in text.splitlines() if line.strip()]
    try:
        given: Any = json.loads(text)
        if isinstance(given, dict):
            given = [given[str(index)] for index in range(len(given))]
        return [str(label[-1] if isinstance(label, list) else label) for label in given]
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise errors.LoadError(
            f'the labels {path.name} are neither a JSON list nor {{"0": "label", …}}: {type(error).__name__}: {error}'
        ) from error


def _builder(context: LoadContext, archive: Archive, weights: dict[str, torch.Tensor] | None) -> Callable[[], Any]:
    kind, _, name = (context.architecture or "").partition(":")
    arguments: dict[str, Any] = dict(context.options.get("architecture_args") or {})
    if kind == "torchvision":
        import torchvision.models  # only where it is asked for: serving itself does not need torchvision

        if name not in torchvision.models.list_models(module=torchvision.models):
            raise errors.LoadError(f"torchvision has no classification builder {name!r}")
        if name in ("googlenet", "inception_v3"):
            arguments.setdefault("init_weights", False)
            arguments.setdefault("aux_logits", any(key.startswith(("aux", "AuxLogits")) for key in weights or ()))
        build = functools.partial(torchvision.models.get_model, name, weights=None, **arguments)
        if weights is None or "num_classes" in arguments:
            return build
        classes = class_count(build, weights)
        return build if classes is None else functools.partial(build, num_classes=classes)
    module, call = module_of(archive, context.architecture or "", what="architecture")
    factory = getattr(module, call, None)
    if not callable(factory):
        raise errors.LoadError(f"architecture {context.architecture}: the file has no callable {call!r}")
    return lambda: factory(**arguments)


def _scripted(path: Path, device: str) -> torch.nn.Module:
    scripted = False
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            scripted = any(name.endswith("constants.pkl") for name in archive.namelist())
    if not scripted:
        raise errors.LoadError(
            f"{path.name} holds weights only; say in model.yaml what to build: architecture: torchvision:resnet50, "
            "or net.py:build"
        )
    try:
        return torch.jit.load(str(path), map_location=device).eval()
    except Exception as error:
        raise errors.LoadError(f"the TorchScript file {path.name} cannot be loaded: {error}") from error
