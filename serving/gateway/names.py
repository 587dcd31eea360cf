"""Names that the parts of the gateway agree on: headers, clusters, files."""

from __future__ import annotations

import importlib.metadata
from typing import Literal

Protocol = Literal["rest", "grpc"]
PROTOCOLS: tuple[Protocol, ...] = ("rest", "grpc")

PRODUCTION = "production"

SERVER = "slipway"
"""What the gateway calls itself to clients."""


def server_version() -> str:
    """Of the installed Slipway."""
    try:
        return importlib.metadata.version(SERVER)
    except importlib.metadata.PackageNotFoundError:
        return "0"


STAGE_HEADER = "slipway-stage"
VERSION_HEADER = "slipway-model-version"
PROTOCOL_HEADER = "slipway-protocol"
OIP_PROTOCOL = "oip-v2"

# Set by grpc.lua from the message, read by the routes, never seen by a server process or accepted from a client.
MODEL_HEADER = "x-slipway-model"
NUMBER_HEADER = "x-slipway-version"

TORCHSERVE_GRPC = "/org.pytorch.serve.grpc.inference.InferenceAPIsService/"
OIP_GRPC = "/inference.GRPCInferenceService/"

GRPC_FILTER = "slipway.grpc"
ERRORS_FILTER = "slipway.upstream_errors"
UNKNOWN_FILTER = "slipway.unknown_model"
BUFFER_FILTER = "slipway.buffer"

METADATA = "slipway"
"""Namespace of the metadata that routes and clusters carry for error bodies."""

ROUTES = "slipway"
"""The one route configuration."""

INGRESS = "ingress"
"""Prefix of the listener's statistics."""

OIP_ADAPTER = "oip_adapter"
"""The static cluster of the companion's gRPC server."""


def cluster(model: str, version: int, protocol: Protocol) -> str:
    """``digits@3@rest``: '@' is in no model's name, so that statistics can be taken apart again."""
    return f"{model}@{version}@{protocol}"


def parse_cluster(name: str) -> tuple[str, int, str] | None:
    """Model, version and protocol of a cluster; ``None`` for one that serves no model."""
    model, _, rest = name.partition("@")
    version, _, protocol = rest.partition("@")
    return (model, int(version), protocol) if version.isdigit() and protocol in PROTOCOLS else None
