"""The control plane's own metrics, in a registry of their own."""

from __future__ import annotations

import importlib.metadata
import time
from typing import Any

import prometheus_client as prometheus
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serving.domain import rollouts, wire
from serving.rollout import board

LATENCY_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


def release() -> str:
    """The installed version of Slipway."""
    try:
        return importlib.metadata.version("slipway")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


class Metrics:
    def __init__(self) -> None:
        self.registry = prometheus.CollectorRegistry()
        self.requests = prometheus.Counter(
            "slipway_api_requests", "Requests answered.", ["method", "route", "status"], registry=self.registry
        )
        self.latency = prometheus.Histogram(
            "slipway_api_request_seconds",
            "Time to answer; long polls include their waiting.",
            ["method", "route"],
            buckets=LATENCY_BUCKETS_S,
            registry=self.registry,
        )
        self.reconcile = prometheus.Histogram(
            "slipway_reconcile_seconds",
            "Duration of a reconciliation that succeeded.",
            buckets=LATENCY_BUCKETS_S,
            registry=self.registry,
        )
        self.reconcile_failures = prometheus.Counter(
            "slipway_reconcile_failures", "Reconciliations that failed.", registry=self.registry
        )
        self.rollouts = prometheus.Gauge("slipway_rollouts", "Rollouts by state.", ["state"], registry=self.registry)
        self.replicas = prometheus.Gauge(
            "slipway_replicas", "Replicas by pool and liveness.", ["pool", "live"], registry=self.registry
        )
        self.gateways = prometheus.Gauge("slipway_gateways", "Gateways by liveness.", ["live"], registry=self.registry)
        self.ready_endpoints = prometheus.Gauge(
            "slipway_version_endpoints",
            "Replicas to which gateways send a model version.",
            ["model", "version"],
            registry=self.registry,
        )
        self.database_up = prometheus.Gauge(
            "slipway_database_up", "1 when the last reconciliation reached the database.", registry=self.registry
        )
        prometheus.Info("slipway_build", "What is running.", registry=self.registry).info({"version": release()})

    def observe_reconciliation(self, seconds: float, succeeded: bool) -> None:
        self.database_up.set(int(succeeded))
        if succeeded:
            self.reconcile.observe(seconds)
        else:
            self.reconcile_failures.inc()

    def expose(self, *, snapshot: board.Snapshot | None, rollouts_by_state: dict[str, int] | None) -> bytes:
        """The exposition text. What could not be counted now keeps the value it had."""
        if rollouts_by_state is not None:
            for state in rollouts.State:
                self.rollouts.labels(state.value).set(rollouts_by_state.get(state.value, 0))
        if snapshot is not None:
            self._count_parts(snapshot)
        return prometheus.generate_latest(self.registry)

    def _count_parts(self, snapshot: board.Snapshot) -> None:
        world = snapshot.facts
        self.replicas.clear()
        for pool in snapshot.assignments:
            for live in (True, False):
                count = sum(r.report.pool == pool and world.is_live(r.last_seen) is live for r in world.replicas)
                self.replicas.labels(pool, str(live).lower()).set(count)
        for live in (True, False):
            count = sum(world.is_live(gateway.last_seen) is live for gateway in world.gateways)
            self.gateways.labels(str(live).lower()).set(count)
        self.ready_endpoints.clear()
        for ref, endpoints in _endpoints(snapshot.config).items():
            self.ready_endpoints.labels(ref.model, str(ref.version)).set(endpoints)


class Middleware:
    """Counts and times requests by route template, so that a label's values stay few."""

    def __init__(self, app: ASGIApp, *, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status = 500
        began = time.perf_counter()

        async def watch(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, watch)
        finally:
            route: Any = scope.get("route")
            name = getattr(route, "path_format", None) or getattr(route, "path", None) or "unmatched"
            self._metrics.requests.labels(scope["method"], name, str(status)).inc()
            self._metrics.latency.labels(scope["method"], name).observe(time.perf_counter() - began)


def _endpoints(config: wire.GatewayConfig) -> dict[wire.VersionRef, int]:
    return {
        wire.VersionRef(model=model.model, version=version.version): len(version.endpoints)
        for model in config.models
        for version in model.versions
    }
