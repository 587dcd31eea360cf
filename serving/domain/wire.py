"""The messages between control plane, agents and gateways.

They are the whole contract: an agent never sees the database, a gateway never sees an agent. Both poll, and
both report; every message is a full statement of facts (level-triggered), so that a lost one costs nothing.
Times are UTC, sizes are bytes, durations end in ``_s`` (seconds) or ``_ms`` (milliseconds).
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from model_store.manifest import Manifest


class Message(BaseModel):
    # Unknown fields are dropped, so that an older part understands a newer one during an upgrade.
    model_config = ConfigDict(extra="ignore", frozen=True)


class VersionRef(Message):
    model: str
    version: int

    def __str__(self) -> str:
        return f"{self.model}@{self.version}"

    def __hash__(self) -> int:
        return hash((self.model, self.version))


# --- control plane → agent: GET /v1/pools/{pool}/assignment?generation=G&wait_s=S --------------------------------


class AssignedVersion(Message):
    """A version that the pool's replicas must hold ready."""

    model: str
    version: int
    manifest: Manifest

    @property
    def ref(self) -> VersionRef:
        return VersionRef(model=self.model, version=self.version)


class Assignment(Message):
    """What every replica of a pool must hold. A version that is not listed is to be stopped, once it is drained."""

    pool: str
    generation: int = Field(description="grows with every change; long polls wait for it to differ")
    versions: list[AssignedVersion]


# --- agent → control plane: PUT /v1/replicas/{replica} -----------------------------------------------------------


class ServerState(StrEnum):
    PULLING = "pulling"
    STARTING = "starting"
    WARMING = "warming"
    READY = "ready"
    DRAINING = "draining"
    FAILED = "failed"


class ServerReport(Message):
    """One server process: one model version on one replica."""

    model: str
    version: int
    digest: str
    state: ServerState
    since: datetime
    host: str = "127.0.0.1"
    rest_port: int | None = None
    grpc_port: int | None = None
    pid: int | None = None
    workers: int = 0
    threads: int = 0
    memory_bytes: int = 0
    restarts: int = 0
    error: str | None = Field(default=None, description="why it is not ready, with the worker's own traceback")

    @property
    def ref(self) -> VersionRef:
        return VersionRef(model=self.model, version=self.version)


class ReplicaReport(Message):
    """All that a replica knows about itself; sent on every change and at least every ``heartbeat_s``."""

    replica: str
    pool: str
    agent_url: str = Field(description="where the agent serves /healthz, /readyz and /metrics")
    started_at: datetime
    generation: int = Field(description="of the assignment that this report answers")
    draining: bool = Field(default=False, description="the whole replica is shutting down: route nothing to it")
    cores: int = 0
    memory_bytes: int = 0
    servers: list[ServerReport]


class ReportAck(Message):
    """The control plane's answer to a report."""

    generation: int = Field(description="of the pool's newest assignment")
    routed: list[VersionRef] = Field(
        description="versions that some gateway may still send to this replica, or has requests in flight for; "
        "a server process is stopped only when its version is not among them (or a bounded wait has passed)"
    )


# --- control plane → gateway: GET /v1/gateway/config?revision=R&wait_s=S -----------------------------------------


class Endpoint(Message):
    replica: str
    host: str
    rest_port: int
    grpc_port: int


class GatewayVersion(Message):
    version: int
    endpoints: list[Endpoint] = Field(description="ready replicas only; may be empty: then 503 with Retry-After")
    response_timeout_s: int
    max_request_bytes: int
    metadata: dict[str, Any] = Field(description="the Open Inference Protocol v2 model metadata answer")


class WeightedVersion(Message):
    version: int
    weight: int = Field(ge=0, le=10_000, description="of 10,000")


class GatewayStage(Message):
    stage: str
    weights: list[WeightedVersion] = Field(description="sums to 10,000; empty while nothing was promoted")


class GatewayModel(Message):
    model: str
    stages: list[GatewayStage]
    versions: list[GatewayVersion] = Field(description="every version that may be addressed, newest first")


class GatewayConfig(Message):
    """Everything that a gateway needs; the same facts give the same revision."""

    revision: str = Field(description="SHA-256 over the models, as canonical JSON")
    models: list[GatewayModel]


# --- gateway → control plane: PUT /v1/gateways/{gateway} ---------------------------------------------------------


class ActiveRequests(Message):
    model: str
    version: int
    requests: int = Field(description="requests now in flight from this gateway to the version")


class GatewayReport(Message):
    gateway: str
    url: str
    applied_revision: str | None = Field(description="the newest revision that Envoy itself says it serves")
    active: list[ActiveRequests] = []
    error: str | None = Field(default=None, description="Envoy's words, when it refused a configuration")
