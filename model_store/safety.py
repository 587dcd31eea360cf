"""Read what a checkpoint's pickle would call, without unpickling it and without torch.

This is an early and readable refusal, at the publisher's desk. What protects a replica is that handlers load weights
with safetensors or ``weights_only=True``, whatever this scan said. The list of what is allowed is therefore the list of
what torch's restricted unpickler allows for plain state_dicts; everything else is refused by name.

The pickle is interpreted just far enough to know the strings on its stack: opcodes are never executed. A name that is
not a plain string on that stack counts as unknown, hence as unsafe.
"""

from __future__ import annotations

import pickletools
import re
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from model_store import errors

PICKLE_SUFFIXES = frozenset({".pt", ".pth", ".bin", ".ckpt", ".pkl", ".pickle", ".joblib"})
_REBUILD = (
    "tensor",
    "tensor_v2",
    "tensor_v3",
    "parameter",
    "parameter_with_state",
    "qtensor",
    "sparse_tensor",
    "nested_tensor",
    "meta_tensor_no_storage",
    "wrapper_subclass",
    "device_tensor_from_numpy",
    "device_tensor_from_cpu_tensor",
)
ALLOWED = frozenset(
    {
        "_codecs.encode",
        "builtins.bytearray",
        "builtins.complex",
        "builtins.set",
        "collections.Counter",
        "collections.OrderedDict",
        "torch.Size",
        "torch.Tensor",
        "torch._tensor._rebuild_from_type_v2",
        "torch.device",
        "torch.nn.parameter.Parameter",
        "torch.serialization._get_layout",
        "torch.storage.TypedStorage",
        "torch.storage.UntypedStorage",
        *(f"torch._utils._rebuild_{kind}" for kind in _REBUILD),
    }
)
TENSOR_TYPES = re.compile(r"torch(\.cuda)?(\.sparse)?\.[A-Z][A-Za-z0-9]*(Storage|Tensor)")
DTYPES = re.compile(
    r"torch\.(b?float(\d+(_e\dm\d\w*)?)?|bool|b?complex\d+|bits\d+(x\d)?|double|half|long|short|q?u?int(\d+(x\d)?)?)"
)
QUANTIZATION_SCHEMES = re.compile(r"torch\.per_(tensor|channel)_[a-z_]+")
LEGACY_DECODED = {"__builtin__": "builtins", "copy_reg": "copyreg"}
"""Modules of Python 2 pickles, which Python 3 renames when it loads them."""

UNKNOWN = "<computed at load time>"
MAX_PICKLE_BYTES = 256 * 1024 * 1024
PICKLE_MAGIC = b"\x80"
LEGACY_PICKLES = 5
"""A checkpoint from before torch 1.6: magic, protocol, system, object and storage keys, one pickle after the other."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that a file would import when loaded and that plain weights never need."""

    file: str
    name: str

    def __str__(self) -> str:
        return f"{self.file} calls {self.name}"


def require_safe(files: Mapping[str, Path]) -> None:
    """Scan every checkpoint of an archive.

    Raises:
        UnsafeWeights: names every finding and the way out.
    """
    findings = [finding for name, path in sorted(files.items()) for finding in scan(path, name=name)]
    if findings:
        raise errors.UnsafeWeights(
            "weights must load with weights_only=True, and these would run other code: "
            + "; ".join(dict.fromkeys(str(finding) for finding in findings))
            + ". Save the state_dict instead of the model (torch.save(model.state_dict(), FILE)), or use safetensors"
        )


def scan(path: Path, *, name: str | None = None) -> list[Finding]:
    """What ``path`` would import beyond plain tensors; empty for files that hold no pickle.

    A TorchScript file may name its own ``__torch__`` types: they are compiled from the file, by torch's own parser.

    Raises:
        ArchiveError: the file is a damaged zip.
    """
    label = name or path.name
    if path.suffix.lower() not in PICKLE_SUFFIXES:
        return []
    with path.open("rb") as file:
        if zipfile.is_zipfile(file):
            try:
                return list(_scan_zip(file, label))
            except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, NotImplementedError) as error:
                raise errors.ArchiveError(f"{path} cannot be read ({error}); save the checkpoint again") from error
        file.seek(0)
        if file.read(1) != PICKLE_MAGIC and path.suffix.lower() not in (".pkl", ".pickle"):
            return []  # raw weights of another framework
        file.seek(0)
        found: list[Finding] = []
        for _ in range(LEGACY_PICKLES):
            complete = _collect(file, label, found, script=False)
            if not complete:
                break
        return found


def _scan_zip(file: IO[bytes], label: str) -> Iterator[Finding]:
    with zipfile.ZipFile(file) as archive:
        names = archive.namelist()
        script = any(name.endswith("/constants.pkl") for name in names) and any("/code/" in name for name in names)
        for entry in archive.infolist():
            if not entry.filename.endswith(".pkl"):
                continue
            if entry.file_size > MAX_PICKLE_BYTES:
                yield Finding(file=f"{label}:{entry.filename}", name=f"a pickle of {entry.file_size} bytes")
                continue
            found: list[Finding] = []
            with archive.open(entry) as stream:
                _collect(stream, f"{label}:{entry.filename}", found, script=script)
            yield from found


def _collect(stream: IO[bytes], label: str, found: list[Finding], *, script: bool) -> bool:
    """Append the findings of one pickle; ``False`` if it ends in garbage (what came before counts all the same)."""
    try:
        for name in _globals(stream):
            if not (_allowed(name) or (script and name.startswith("__torch__."))):
                found.append(Finding(file=label, name=name))
    except (ValueError, EOFError, UnicodeDecodeError, OverflowError):
        return False
    return True


def _allowed(name: str) -> bool:
    return name in ALLOWED or any(
        pattern.fullmatch(name) is not None for pattern in (TENSOR_TYPES, DTYPES, QUANTIZATION_SCHEMES)
    )


def _globals(stream: IO[bytes]) -> Iterator[str]:
    """Dotted names that a pickle imports, in order."""
    stack: list[Any] = []  # strings, pickletools.markobject, or None for all else
    memo: dict[int, Any] = {}
    for opcode, argument, _ in pickletools.genops(stream):
        match opcode.name:
            case "GLOBAL" | "INST":
                yield _dotted(*str(argument).split(" ", 1))
            case "STACK_GLOBAL":
                name, module = (stack[-1] if stack else None), (stack[-2] if len(stack) > 1 else None)
                known = isinstance(name, str) and isinstance(module, str)
                yield _dotted(str(module), str(name)) if known else UNKNOWN
            case "EXT1" | "EXT2" | "EXT4":
                yield UNKNOWN
            case "MEMOIZE":
                memo[len(memo)] = stack[-1] if stack else None
                continue
            case "PUT" | "BINPUT" | "LONG_BINPUT":
                memo[int(str(argument))] = stack[-1] if stack else None
                continue
            case "GET" | "BINGET" | "LONG_BINGET":
                stack.append(memo.get(int(str(argument))))
                continue
            case "DUP":
                stack.append(stack[-1] if stack else None)
                continue
            case _:
                pass
        _step(stack, opcode, argument)


def _step(stack: list[Any], opcode: pickletools.OpcodeInfo, argument: Any) -> None:
    """Apply an opcode's stack effect as pickletools documents it."""
    before = list(opcode.stack_before)
    if pickletools.markobject in before or opcode.name == "POP_MARK":
        while stack and stack.pop() is not pickletools.markobject:
            pass
        before = before[: before.index(pickletools.markobject)] if pickletools.markobject in before else []
    for _ in before:
        if stack:
            stack.pop()
    for each in opcode.stack_after:
        if each is pickletools.markobject:
            stack.append(each)
        else:
            stack.append(argument if isinstance(argument, str) and opcode.name not in ("GLOBAL", "INST") else None)


def _dotted(module: str, name: str) -> str:
    return f"{LEGACY_DECODED.get(module, module)}.{name}"
