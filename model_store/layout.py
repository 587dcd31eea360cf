"""Names inside an archive: which are ours, and which a name from outside may be."""

from __future__ import annotations

import re

from model_store import manifest

MAR_INF = "MAR-INF"
MAR_MANIFEST = f"{MAR_INF}/MANIFEST.json"
GOLDEN = "golden"
TORCHSERVE_CONFIG = "model-config.yaml"

ENTRY_SOURCE = "from handlers import runtime\n\nhandle = runtime.entry(__file__)\n"
"""The whole content of :data:`manifest.ENTRY_FILE`."""

RESERVED = frozenset(
    {MAR_INF, manifest.CONFIG_FILE, manifest.RUNTIME_FILE, manifest.ENTRY_FILE, TORCHSERVE_CONFIG, GOLDEN}
)
"""First path components that Slipway writes itself."""

SHADOWING = frozenset({"handlers", "model_store", "serving", "torch", "torchvision", "transformers", "ts", "numpy"})
"""Packages that a worker imports: an archive's root comes first on its path and would hide them."""

MAX_NAME_BYTES = 512
_FORBIDDEN = re.compile(r'[\x00-\x1f\x7f\\:*?"<>|]')


def problem_with(name: str) -> str | None:
    """Why ``name`` cannot be a file's name in an archive, or ``None``.

    A good name is relative, uses ``/``, has no ``.`` or ``..`` component and no character that some system forbids.
    """
    if not name or len(name.encode("utf-8", "surrogatepass")) > MAX_NAME_BYTES:
        return f"a name has 1 to {MAX_NAME_BYTES} bytes"
    if name.startswith("/"):
        return "the name is absolute"
    if _FORBIDDEN.search(name):
        return 'the name holds a control character or one of \\ : * ? " < > |'
    if any(part in ("", ".", "..") for part in name.split("/")):
        return "the name has an empty, '.' or '..' component"
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        return "the name is not valid Unicode"
    return None


def reserved(name: str) -> str | None:
    """Why a user's file cannot have this (well-formed) name, or ``None``."""
    first = name.split("/", 1)[0]
    if first in RESERVED:
        return f"{first} is written by Slipway"
    if first in SHADOWING or first.removesuffix(".py") in SHADOWING:
        return f"{first} would hide the Python package {first.removesuffix('.py')} in the worker"
    return None
