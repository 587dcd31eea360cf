"""What a model version is: the schema that the archive, the bucket, the control plane and the replica agree on.

Two documents are described here. :class:`ArchiveConfig` travels inside the archive (``slipway.json``) and is
therefore covered by the digest; it holds everything that changes what the model answers. :class:`Manifest` stands
beside the archive in the bucket; it names the digest and adds what is known *about* the archive: sizes, expected
outputs, framework versions, provenance.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

SCHEMA_VERSION = 1
"""Version of the manifest's schema. A reader refuses a newer one and says so."""

HANDLER_API = 1
"""Version of the contract between an archive and ``handlers/``."""

CONFIG_FILE = "slipway.json"
"""Name of :class:`ArchiveConfig` inside an archive."""

RUNTIME_FILE = "slipway.runtime.json"
"""Name of the file that an agent writes into a replica's private copy: never part of an archive."""

ENTRY_FILE = "slipway_handler.py"
"""The archive's TorchServe handler: a generated shim that hands over to ``handlers.runtime``."""

NAME_PATTERN = r"^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?$"
"""A model's name: it appears in URLs, metric labels, folder names and Kubernetes labels."""

NAME = re.compile(NAME_PATTERN)

ModelName = Annotated[str, StringConstraints(pattern=NAME_PATTERN)]
Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
"""Lower-case hexadecimal SHA-256 of the archive's bytes."""

Datatype = Literal[
    "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64",
    "FP16", "BF16", "FP32", "FP64", "BYTES",
]  # fmt: skip
"""Tensor datatypes as the Open Inference Protocol v2 names them."""


class _Document(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Tensor(_Document):
    """One named input or output; ``-1`` in the shape is a dimension that varies."""

    name: str
    datatype: Datatype
    shape: list[int]


class Signature(_Document):
    inputs: list[Tensor] = []
    outputs: list[Tensor] = []


class Serving(_Document):
    """How a replica runs the version. ``None`` means: the agent fits it to the replica's cores."""

    workers: int | None = Field(default=None, ge=1, le=64)
    threads: int | None = Field(default=None, ge=1, le=256, description="intra-op threads of each worker")
    batch_size: int = Field(default=8, ge=1, le=1024)
    max_batch_delay_ms: int = Field(default=5, ge=1, le=10_000, description="0 would cap batches at 2")
    queue_size: int = Field(default=100, ge=1, le=100_000)
    response_timeout_s: int = Field(default=60, ge=1, le=3600)
    startup_timeout_s: int = Field(default=300, ge=1, le=3600, description="load and warm-up of one worker")
    max_request_bytes: int = Field(default=64 * 1024 * 1024, ge=1024, le=1024 * 1024 * 1024)
    max_response_bytes: int = Field(default=64 * 1024 * 1024, ge=1024, le=1024 * 1024 * 1024)
    device: Literal["auto", "cpu", "gpu"] = "auto"


class GoldenInput(_Document):
    """One input that proves a replica, as a file inside the archive."""

    file: str
    content_type: str = "application/octet-stream"


class GoldenOutput(_Document):
    """What the publisher's machine answered to a golden input."""

    file: str
    expected: Any = Field(description="the decoded JSON answer")
    tolerance: float = Field(default=1e-3, ge=0, description="for each number: |a-b| <= tolerance * max(1, |b|)")


class ArchiveConfig(_Document):
    """``slipway.json``: everything that a handler needs to know about its own archive."""

    handler_api: int = HANDLER_API
    handler: str = Field(
        description="a built-in name (image_classifier, transformer) or file:NAME.py for one packed in the archive"
    )
    model_file: str | None = Field(default=None, description="weights file or folder, relative to the archive's root")
    architecture: str | None = Field(
        default=None, description="torchvision:BUILDER, or file:NAME.py:CALLABLE packed in the archive"
    )
    options: dict[str, Any] = {}
    signature: Signature = Signature()
    golden: list[GoldenInput] = []
    requirements: list[str] = Field(default=[], description="PEP 508 lines that the replica's environment must satisfy")


class Provenance(_Document):
    created_at: datetime
    created_by: str
    host: str
    source: str | None = Field(default=None, description="the model.yaml or seed config that it was packed from")
    git_commit: str | None = None
    slipway: str
    frameworks: dict[str, str] = Field(default={}, description="versions of torch, torchvision, transformers …")


class Manifest(_Document):
    """One immutable model version, as stored in the bucket beside its archive."""

    schema_version: int = SCHEMA_VERSION
    model: ModelName
    description: str = ""
    digest: Digest
    size_bytes: int = Field(ge=0, description="of the archive")
    unpacked_bytes: int = Field(ge=0)
    archive_key: str = Field(description="object key below the store's prefix")
    config: ArchiveConfig
    serving: Serving = Serving()
    pool: ModelName = "cpu"
    golden: list[GoldenOutput] = []
    metrics: dict[str, float] = Field(default={}, description="the trainer's own figures, e.g. held_out_accuracy")
    provenance: Provenance


class Runtime(_Document):
    """``slipway.runtime.json``: what an agent tells the worker about where it runs."""

    model: ModelName
    version: int = Field(ge=1)
    pool: str
    digest: Digest
    threads: int = Field(ge=1)
    device: Literal["cpu", "gpu"] = "cpu"
    max_response_bytes: int = Serving().max_response_bytes
    golden: list[GoldenOutput] = []
