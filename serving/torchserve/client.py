"""The few questions that are asked of one server process.

Describing costs: TorchServe answers it on the threads that serve inference. It is asked at the pace of a watch, not of
a request.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import httpx

from serving.torchserve import errors
from serving.torchserve.ports import LOOPBACK, Ports

TIMEOUT_S = 5.0


@dataclass(frozen=True, kw_only=True)
class Worker:
    id: str
    pid: int
    ready: bool


@dataclass(frozen=True, kw_only=True)
class Description:
    """What TorchServe says of the one version that it holds."""

    workers: tuple[Worker, ...]
    queued: int
    queue_free: int

    @property
    def ready(self) -> int:
        """How many workers have the model loaded."""
        return sum(worker.ready for worker in self.workers)


@dataclass(frozen=True, kw_only=True)
class Answer:
    status: int
    body: bytes


class Client:
    """One server process's management, metrics and inference addresses."""

    def __init__(self, *, model: str, version: int, host: str, ports: Ports, http: httpx.AsyncClient) -> None:
        self._model = model
        self._version = version
        self._inference = f"http://{host}:{ports.rest}"
        self._management = f"http://{LOOPBACK}:{ports.management}"
        self._metrics = f"http://{LOOPBACK}:{ports.metrics}"
        self._http = http

    async def describe(self) -> Description:
        """Ask for workers and queue.

        Raises:
            Unreachable: no answer (yet).
            Unloaded: it answers that it does not hold the version.
            BadAnswer: it answers something else.
        """
        response = await self._get(f"{self._management}/models/{self._model}/{self._version}")
        if response.status_code == 404:
            raise errors.Unloaded(f"the process does not hold version {self._version} of {self._model}")
        try:
            response.raise_for_status()
            return parse_description(response.json())
        except (httpx.HTTPStatusError, ValueError, KeyError, IndexError, TypeError) as error:
            raise errors.BadAnswer(
                f"describing {self._model} answered {response.status_code}: {response.text[:500]}"
            ) from error

    async def metrics(self) -> str:
        """The process's metrics as Prometheus text.

        Raises:
            Unreachable: no answer.
        """
        response = await self._get(f"{self._metrics}/metrics")
        return response.text

    async def predict(self, body: bytes, *, content_type: str, timeout_s: float) -> Answer:
        """Send one request the way that the gateway would.

        Raises:
            Unreachable: no answer within ``timeout_s``.
        """
        try:
            response = await self._http.post(
                f"{self._inference}/predictions/{self._model}/{self._version}",
                content=body,
                headers={"content-type": content_type},
                timeout=timeout_s,
            )
        except httpx.HTTPError as error:
            raise errors.Unreachable(f"no answer within {timeout_s:g} s: {error or type(error).__name__}") from error
        return Answer(status=response.status_code, body=response.content)

    async def _get(self, url: str) -> httpx.Response:
        try:
            return await self._http.get(url, timeout=TIMEOUT_S)
        except httpx.HTTPError as error:
            raise errors.Unreachable(f"{url}: {error or type(error).__name__}") from error


def parse_description(answer: Any) -> Description:
    """Read the JSON of ``GET /models/{model}/{version}``."""
    described = answer[0]
    queue = described.get("jobQueueStatus") or {}
    return Description(
        workers=tuple(
            Worker(id=str(worker["id"]), pid=int(worker.get("pid", -1)), ready=worker["status"] == "READY")
            for worker in described["workers"]
        ),
        queued=int(queue.get("pendingRequests", 0)),
        queue_free=int(queue.get("remainingCapacity", 0)),
    )
