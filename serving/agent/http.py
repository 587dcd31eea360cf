"""The agent's own port: is it alive, is the replica ready, what does it hold, what do its metrics say."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Generator

import uvicorn
from prometheus_client import CollectorRegistry, Gauge, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from serving.agent import errors as agent_errors
from serving.agent.control import Reporter
from serving.agent.executor import Executor
from serving.agent.slots import Slot
from serving.domain.wire import ServerState
from serving.torchserve import errors, launch, metrics

STALLED_S = 30.0
"""An agent whose loop has not moved for this long is not healthy."""

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Api:
    """Read-only views on a running agent."""

    def __init__(self, *, executor: Executor, reporter: Reporter, pool: str) -> None:
        self._executor = executor
        self._reporter = reporter
        self._pool = pool

    @property
    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/healthz", self._healthz),
                Route("/readyz", self._readyz),
                Route("/metrics", self._metrics),
                Route("/v1/servers", self._servers),
                Route("/v1/story", self._story),
            ]
        )

    async def _healthz(self, request: Request) -> Response:
        silent_s = time.monotonic() - self._executor.handled_at
        well = silent_s < STALLED_S
        return JSONResponse({"ok": well, "silent_s": round(silent_s, 1)}, status_code=200 if well else 503)

    async def _readyz(self, request: Request) -> Response:
        machine = self._executor.machine
        ready = machine.complete()
        body = {
            "ready": ready,
            "draining": machine.shutting_down,
            "assigned": None if machine.assignment is None else len(machine.assignment.versions),
            "servers": {str(slot.ref): slot.state for slot in machine.slots},
        }
        return JSONResponse(body, status_code=200 if ready else 503)

    async def _servers(self, request: Request) -> Response:
        report = self._reporter.compose(time.monotonic())
        return Response(report.model_dump_json(), media_type="application/json")

    async def _story(self, request: Request) -> Response:
        return Response(self._executor.machine.story() + "\n", media_type="text/plain")

    async def _metrics(self, request: Request) -> Response:
        own = generate_latest(self._own()).decode()
        scraped = await asyncio.gather(*(self._scrape(process) for process in self._executor.processes()))
        return Response(own + metrics.expose(metrics.merge(scraped)), media_type=CONTENT_TYPE)

    async def _scrape(self, process: launch.Process) -> list[metrics.Family]:
        identity = process.identity
        try:
            text = await self._executor.client_of(process).metrics()
        except errors.ServerError:
            return []
        return metrics.relabel(text, metrics.Labels(model=identity.model, version=identity.version, pool=self._pool))

    def _own(self) -> CollectorRegistry:
        registry = CollectorRegistry()
        labels = ["model", "version", "pool"]

        def gauge(name: str, text: str, *more: str) -> Gauge:
            return Gauge(f"slipway_server_{name}", text, [*labels, *more], registry=registry)

        state = gauge("state", "1 for the state that the server process is in", "state")
        workers = gauge("workers", "configured workers")
        ready = gauge("workers_ready", "workers that have the model loaded")
        threads = gauge("threads", "intra-op threads of each worker")
        queued = gauge("queue_depth", "requests that wait for a worker")
        memory = gauge("memory_bytes", "resident memory of the process and its workers")
        restarts = gauge("restarts", "how often the process or all of its workers have been lost")
        deaths = gauge("worker_deaths", "workers that have died since the process started")
        for slot in self._executor.machine.slots:
            values = (slot.version.model, str(slot.version.version), self._pool)
            for possible in ServerState:
                state.labels(*values, possible.value).set(possible is slot.state)
            workers.labels(*values).set(slot.facts.workers if slot.facts else 0)
            threads.labels(*values).set(slot.facts.threads if slot.facts else 0)
            ready.labels(*values).set(slot.ready_workers)
            queued.labels(*values).set(slot.queued)
            memory.labels(*values).set(slot.memory_bytes)
            restarts.labels(*values).set(slot.restarts)
            deaths.labels(*values).set(slot.deaths)
        self._add_totals(registry)
        return registry

    def _add_totals(self, registry: CollectorRegistry) -> None:
        machine = self._executor.machine
        Gauge("slipway_agent_ready", "1 while every assigned version answers", registry=registry).set(
            machine.complete()
        )
        Gauge("slipway_agent_assignment_generation", "of the pool's assignment", registry=registry).set(
            machine.generation
        )
        Gauge("slipway_agent_failed_servers", "versions that are assigned and cannot be served", registry=registry).set(
            sum(_failed(slot) for slot in machine.slots)
        )


def _failed(slot: Slot) -> bool:
    return slot.state is ServerState.FAILED


class Server(uvicorn.Server):
    """Serves on the agent's own loop and leaves signals to the agent."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


def listen(host: str, port: int) -> socket.socket:
    """Bind the agent's port; 0 takes a free one.

    Raises:
        PortTaken: somebody else listens there.
    """
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise agent_errors.PortTaken(
            f"the agent cannot listen on {host}:{port} ({error.strerror}); set SLIPWAY_AGENT_PORT to a free port"
        ) from error
    return listener


def server(app: Starlette) -> Server:
    return Server(uvicorn.Config(app, log_config=None, access_log=False, lifespan="off"))
