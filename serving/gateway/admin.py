"""Envoy's admin interface: what it serves now, what it refused, what is in flight; and the order to drain."""

from __future__ import annotations

import re
from dataclasses import dataclass

import httpx

from serving.domain import wire
from serving.gateway import errors, names
from serving.gateway.settings import LOOPBACK

TIMEOUT_S = 5.0

RDS_STATS = f"http.{names.INGRESS}.rds.{names.ROUTES}"
CDS_STATS = "cluster_manager.cds"


@dataclass(frozen=True, kw_only=True)
class Facts:
    """One look at Envoy's statistics; absent names were never used."""

    values: dict[str, str]

    def version(self, scope: str) -> str:
        """``version_info`` of the newest file taken in a scope; empty when there was none."""
        return self.values.get(f"{scope}.version_text", "").strip('"')

    def refusals(self, scope: str) -> int:
        """How many files were refused in a scope since Envoy started."""
        return int(self.values.get(f"{scope}.update_rejected", "0"))

    @property
    def warming(self) -> int:
        """Clusters that were announced and cannot be used yet."""
        return int(self.values.get("cluster_manager.warming_clusters", "0"))

    def active(self) -> dict[tuple[str, int], int]:
        """Requests in flight by model and version, over both protocols, those waiting for a connection included."""
        found: dict[tuple[str, int], int] = {}
        for name, value in self.values.items():
            matched = re.fullmatch(r"cluster\.(.+)\.upstream_rq_(?:pending_)?active", name)
            parsed = names.parse_cluster(matched[1]) if matched else None
            if parsed is not None:
                key = parsed[0], parsed[1]
                found[key] = found.get(key, 0) + int(value)
        return found

    @property
    def applied_revision(self) -> str | None:
        """The revision whose routes are in force; ``None`` before the first."""
        return self.version(RDS_STATS) or None

    def active_requests(self) -> list[wire.ActiveRequests]:
        """``active`` as the control plane hears it; versions without a request are left out."""
        return [
            wire.ActiveRequests(model=model, version=version, requests=requests)
            for (model, version), requests in sorted(self.active().items())
            if requests > 0
        ]


class Admin:
    """A client of one Envoy's admin interface."""

    def __init__(self, *, port: int) -> None:
        self._client = httpx.AsyncClient(base_url=f"http://{LOOPBACK}:{port}", timeout=TIMEOUT_S, trust_env=False)

    async def close(self) -> None:
        await self._client.aclose()

    async def facts(self) -> Facts:
        """Everything; costs Envoy's main thread up to a tenth of a second where there are hundreds of models.

        Raises EnvoyUnreachable.
        """
        wanted = r"(version_text|update_rejected|warming_clusters|upstream_rq_active|upstream_rq_pending_active)$"
        return await self._facts(filter=wanted)

    async def versions(self) -> Facts:
        """Versions of the files alone, which is cheap.

        Raises EnvoyUnreachable.
        """
        return await self._facts(type="TextReadouts", filter="version_text$")

    async def load(self) -> tuple[int, int]:
        """Connections and requests that the listener has now.

        Raises EnvoyUnreachable.
        """
        answer = await self._get("/stats", filter=rf"^http\.{names.INGRESS}\.downstream_(cx|rq)_active$")
        lines = (line.partition(": ") for line in answer.text.splitlines())
        values = {name.rpartition(".")[2]: int(value) for name, _, value in lines}
        return values.get("downstream_cx_active", 0), values.get("downstream_rq_active", 0)

    async def begin_drain(self) -> None:
        """Tell clients to go elsewhere (``connection: close``, GOAWAY), then close the listeners.

        Raises EnvoyUnreachable.
        """
        await self._post("/healthcheck/fail")
        await self._post("/drain_listeners?graceful")

    async def is_live(self) -> bool:
        """Whether Envoy has started and serves."""
        try:
            return (await self._client.get("/ready")).status_code == 200
        except httpx.HTTPError:
            return False

    async def _facts(self, **query: str) -> Facts:
        lines = (line.partition(": ") for line in (await self._get("/stats", **query)).text.splitlines())
        return Facts(values={name: value for name, _, value in lines})

    async def _get(self, path: str, **query: str) -> httpx.Response:
        try:
            answer = await self._client.get(path, params=query)
            answer.raise_for_status()
        except httpx.HTTPError as error:
            raise errors.EnvoyUnreachable(f"Envoy's admin interface does not answer {path}: {error!r}") from error
        return answer

    async def _post(self, path: str) -> None:
        try:
            (await self._client.post(path)).raise_for_status()
        except httpx.HTTPError as error:
            raise errors.EnvoyUnreachable(f"Envoy's admin interface does not answer {path}: {error!r}") from error
