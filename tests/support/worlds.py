"""Facts written down by hand: a world in which the rules are tried without a server or a database."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime, timedelta
from typing import Any

from model_store import manifest as manifests
from serving.domain import assignments, facts, rollouts, routing, stages, strategies, wire

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def digest(version: int) -> str:
    return f"{version:064x}"


def manifest(model: str = "digits", version: int = 1, **changes: Any) -> manifests.Manifest:
    """A manifest whose digest follows from ``version``."""
    fields: dict[str, Any] = {
        "model": model,
        "digest": digest(version),
        "size_bytes": 1000 + version,
        "unpacked_bytes": 2000,
        "archive_key": f"archives/sha256/{digest(version)}.mar",
        "config": manifests.ArchiveConfig(
            handler="image_classifier",
            signature=manifests.Signature(
                inputs=[manifests.Tensor(name="image", datatype="UINT8", shape=[-1, 28, 28])],
                outputs=[manifests.Tensor(name="scores", datatype="FP32", shape=[-1, 10])],
            ),
        ),
        "provenance": manifests.Provenance(created_at=NOON, created_by="ada", host="laptop", slipway="0.1.0"),
    }
    return manifests.Manifest(**(fields | changes))


def server(version: int, state: wire.ServerState = wire.ServerState.READY, **changes: Any) -> wire.ServerReport:
    fields: dict[str, Any] = {
        "model": "digits",
        "version": version,
        "digest": digest(version),
        "state": state,
        "since": NOON,
        "rest_port": 7000 + version,
        "grpc_port": 8000 + version,
    }
    return wire.ServerReport(**(fields | changes))


def report(*servers: wire.ServerReport, replica: str = "r1", **changes: Any) -> wire.ReplicaReport:
    fields: dict[str, Any] = {
        "replica": replica,
        "pool": "cpu",
        "agent_url": f"http://{replica}:9000",
        "started_at": NOON,
        "generation": 1,
        "servers": list(servers),
    }
    return wire.ReplicaReport(**(fields | changes))


def gateway_report(revision: str | None, *, gateway: str = "g1", active: dict[int, int] | None = None, **changes: Any):
    counts = [wire.ActiveRequests(model="digits", version=v, requests=n) for v, n in (active or {}).items()]
    fields: dict[str, Any] = {"gateway": gateway, "url": "http://g", "applied_revision": revision, "active": counts}
    return wire.GatewayReport(**(fields | changes))


class World:
    """One model, ``digits``, in a pool ``cpu``; everything can be changed, and ``facts`` is what is then known."""

    def __init__(self, *, versions: int = 3, **limits: float) -> None:
        self.now = NOON
        self.observing_since = NOON - timedelta(days=1)
        self.limits = facts.Limits(**limits)
        known = [facts.Version(model="digits", version=n, manifest=manifest(version=n)) for n in range(1, versions + 1)]
        self.versions = {version.ref: version for version in known}
        self.stages: dict[stages.Name, stages.Stage] = {}
        self.rollouts: list[rollouts.Rollout] = []
        self.replaced: list[facts.Replaced] = []
        self.replicas: dict[str, facts.Replica] = {}
        self.gateways: dict[str, facts.Gateway] = {}
        self.generation = 1

    @property
    def facts(self) -> facts.Facts:
        return facts.Facts(
            now=self.now,
            observing_since=self.observing_since,
            limits=self.limits,
            models=("digits",),
            versions=self.versions,
            stages=tuple(self.stages.values()),
            rollouts=tuple(rollout for rollout in self.rollouts if not rollout.state.is_terminal),
            replaced=tuple(self.replaced),
            replicas=tuple(self.replicas.values()),
            gateways=tuple(self.gateways.values()),
            generations={"cpu": self.generation},
        )

    @property
    def config(self) -> wire.GatewayConfig:
        return routing.config(self.facts, wanted=assignments.wanted(self.facts))

    def pass_time(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    def report(self, *servers: wire.ServerReport, replica: str = "r1", **changes: Any) -> None:
        said = report(*servers, replica=replica, **({"generation": self.generation} | changes))
        self.replicas[replica] = facts.Replica(report=said, last_seen=self.now)

    def apply_config(self, gateway: str = "g1", *, active: dict[int, int] | None = None) -> wire.GatewayConfig:
        """The gateway takes up the present configuration, and says so."""
        config = self.config
        said = gateway_report(config.revision, gateway=gateway, active=active)
        self.gateways[gateway] = facts.Gateway(report=said, last_seen=self.now, applied=config)
        return config

    def stage(self, name: stages.Name = stages.Name.PRODUCTION) -> stages.Stage:
        return self.stages.get(name, stages.Stage(model="digits", name=name))

    def make_stable(self, version: int, name: stages.Name = stages.Name.PRODUCTION) -> None:
        self.stages[name] = self.stage(name).promoted(version, at=self.now)

    def start(
        self,
        version: int,
        *,
        name: stages.Name = stages.Name.PRODUCTION,
        kind: rollouts.Kind = rollouts.Kind.PROMOTION,
    ) -> None:
        stage = self.stage(name)
        self.rollouts.append(
            rollouts.Rollout(
                id=f"ro-{len(self.rollouts) + 1}",
                model="digits",
                stage=name,
                kind=kind,
                strategy=strategies.Strategy.ALL_AT_ONCE,
                from_version=stage.stable,
                to_version=version,
                state=rollouts.State.PENDING,
                state_since=self.now,
                actor="ada",
                reason="",
                created_at=self.now,
                before=stage,
            )
        )

    @property
    def rollout(self) -> rollouts.Rollout:
        return self.rollouts[-1]

    def step(self) -> rollouts.Step:
        """Let the latest rollout take one step, and keep the outcome."""
        before = self.rollout
        stage = self.stage(before.stage)
        step = rollouts.advance(before, stage=stage, facts=self.facts)
        self._keep(before, step)
        return step

    def settle(self) -> rollouts.Rollout:
        """Steps until the rollout waits for other facts."""
        self.step()
        while self._moved:
            self.step()
        return self.rollout

    def abort(self, reason: str = "") -> rollouts.Step:
        step = rollouts.abort(
            self.rollout, stage=self.stage(self.rollout.stage), now=self.now, actor="ada", reason=reason
        )
        self._keep(self.rollout, step)
        return step

    def _keep(self, before: rollouts.Rollout, step: rollouts.Step) -> None:
        self._moved = step.rollout.state is not before.state
        self.rollouts[-1] = step.rollout
        self.stages[before.stage] = step.stage
        has_shifted = step.rollout.shifted_at is not None and step.rollout.state is not rollouts.State.ROLLED_BACK
        if has_shifted and before.shifted_at is None and before.from_version is not None:
            self.replaced.append(facts.Replaced(model="digits", version=before.from_version, at=self.now))

    def promote(self, version: int, *, kind: rollouts.Kind = rollouts.Kind.PROMOTION) -> None:
        """A whole rollout on replicas and gateways that do as they are told."""
        self.start(version, kind=kind)
        self.settle()
        held = {entry.version for entry in assignments.wanted(self.facts)}
        self.report(*(server(number) for number in sorted(held)))
        self.settle()
        self.apply_config()
        assert self.settle().state is rollouts.State.DONE, dataclasses.asdict(self.rollout)
