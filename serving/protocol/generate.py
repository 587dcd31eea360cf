"""Regenerates the stubs: ``python -m serving.protocol.generate`` (needs grpcio-tools, part of the ``test`` extra)."""

from __future__ import annotations

import importlib.resources
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parents[1]


def main() -> int:
    """Compile every ``.proto`` of this folder, into this folder; returns protoc's exit code."""
    from grpc_tools import protoc  # only whoever changes a .proto has it

    well_known = importlib.resources.files("grpc_tools") / "_proto"
    # Compiled relative to the repository's root: the stubs then import each other as serving.protocol.…
    sources = [str(path.relative_to(ROOT)) for path in sorted(FOLDER.glob("*.proto"))]
    out = [f"--{kind}={ROOT}" for kind in ("python_out", "pyi_out", "grpc_python_out")]
    return int(protoc.main(["protoc", f"-I{ROOT}", f"-I{well_known}", *out, *sources]))


if __name__ == "__main__":
    sys.exit(main())
