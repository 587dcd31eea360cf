"""The companion: keeps Envoy at the control plane's configuration, reports, and speaks OIP over gRPC.

Run as ``python -m serving.gateway.companion`` beside one Envoy (see ``settings`` for its environment). Envoy needs it
only for news and for ``inference.GRPCInferenceService``: with the companion or the control plane away, everything
else is served as it was.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
import time

import httpx
import pydantic

from serving import logs
from serving.domain import wire
from serving.gateway import admin, bootstrap, errors, explaining, files, oip, switching, xds
from serving.gateway.settings import Settings

log = logging.getLogger("serving.gateway.companion")

LONG_POLL_S = 20
REQUEST_TIMEOUT_S = 10.0
RETRY_S = 1.0

SAMPLE_S = 0.5
"""How often Envoy is looked at."""

BUSY_SAMPLE_S = 0.1
"""How often while versions without a route still answer requests: promotions wait for the end of those."""

HEARTBEAT_S = 2.0
STOP_TIMEOUT_S = 5.0


class Companion:
    """One task follows the control plane, one moves Envoy, one reports; they meet in these attributes."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._layout = files.Layout(root=settings.folder)
        self._admin = admin.Admin(port=settings.admin_port)
        self._control = httpx.AsyncClient(base_url=settings.control_url, timeout=REQUEST_TIMEOUT_S)
        last = self._layout.last_good()
        self._switch = switching.Switch(layout=self._layout, admin=self._admin, current=self._snapshot(last))
        self._applied = last
        """What Envoy took last, and what is on disk."""
        self._desired = last
        """What the control plane said last."""
        self._refused: str | None = None
        """A revision that Envoy refused: tried again only once the control plane has another."""
        self._report = wire.GatewayReport(gateway=settings.gateway, url=settings.public_url, applied_revision=None)
        self._news = asyncio.Event()
        """Set when ``_desired`` changed."""
        self._say = asyncio.Event()
        """Set when ``_report`` holds what the control plane waits for."""

    async def run(self) -> None:
        """Until cancelled."""
        server = await oip.serve(
            port=self._settings.oip_port, gateway=f"http://{self._settings.local_host}:{self._settings.port}"
        )
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._follow())
                group.create_task(self._move())
                group.create_task(self._tell())
        finally:
            await server.stop(STOP_TIMEOUT_S)
            await self._control.aclose()
            await self._admin.close()

    async def _follow(self) -> None:
        """Ask for the configuration for ever; each answer comes as soon as there is another one."""
        is_away = False
        while True:
            query: dict[str, str | int] = {"wait_s": LONG_POLL_S}
            if self._desired is not None:
                query["revision"] = self._desired.revision
            try:
                answer = await self._control.get(
                    "/v1/gateway/config", params=query, timeout=LONG_POLL_S + REQUEST_TIMEOUT_S
                )
                answer.raise_for_status()
                if answer.status_code == 200:
                    self._desired = wire.GatewayConfig.model_validate_json(answer.content)
                    self._news.set()
            except (httpx.HTTPError, pydantic.ValidationError) as error:
                if not is_away:
                    log.warning(
                        "no configuration from the control plane; the last one stays", extra={"error": repr(error)}
                    )
                is_away = True
                await asyncio.sleep(RETRY_S)
            else:
                is_away = False

    async def _move(self) -> None:
        """Level-triggered: look at Envoy, take it to the desired configuration if it is elsewhere, look again."""
        while True:
            is_busy = False
            self._news.clear()
            try:
                problem = await self._apply()
                facts = await self._admin.facts()
                self._switch.retire(facts)
                is_busy = self._note(facts, problem)
            except errors.EnvoyUnreachable as error:
                self._replace_report(applied=None, active=[], problem=str(error))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), BUSY_SAMPLE_S if is_busy else SAMPLE_S)

    async def _apply(self) -> str | None:
        """Move Envoy if that is needed; returns why it would not."""
        desired = self._desired
        if desired is None or (self._applied is not None and desired.revision == self._applied.revision):
            return None
        if desired.revision == self._refused:
            return self._report.error
        started = time.monotonic()
        try:
            await self._switch.apply(self._snapshot(desired))
        except errors.ConfigurationRefused as error:
            self._refused = desired.revision
            reason = await explaining.explain(self._settings, self._snapshot(desired))
            problem = f"{error}: {reason or 'its log may say why'}"
            log.error("a configuration was refused", extra={"revision": desired.revision, "error": problem})
            return problem
        await asyncio.to_thread(self._layout.remember, desired)
        self._applied, self._refused = desired, None
        log.info(
            "Envoy serves a new configuration",
            extra={"revision": desired.revision, "ms": round((time.monotonic() - started) * 1000)},
        )
        return None

    def _note(self, facts: admin.Facts, problem: str | None) -> bool:
        """Take down what there is to report; whether versions without a route are still at work."""
        active = facts.active_requests()
        self._replace_report(applied=facts.applied_revision, active=active, problem=problem)
        routed = _routed(self._applied)
        return any((entry.model, entry.version) not in routed for entry in active)

    def _replace_report(self, *, applied: str | None, active: list[wire.ActiveRequests], problem: str | None) -> None:
        before = self._report
        self._report = before.model_copy(update={"applied_revision": applied, "active": active, "error": problem})
        routed = _routed(self._applied)

        def leaving(report: wire.GatewayReport) -> set[tuple[str, int]]:
            return {(entry.model, entry.version) for entry in report.active} - routed

        if (before.applied_revision, before.error) != (applied, problem) or leaving(before) != leaving(self._report):
            self._say.set()

    async def _tell(self) -> None:
        """Report every change at once, and as a heartbeat."""
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._say.wait(), HEARTBEAT_S)
            self._say.clear()
            try:
                answer = await self._control.put(
                    f"/v1/gateways/{self._settings.gateway}",
                    content=self._report.model_dump_json(),
                    headers={"content-type": "application/json"},
                )
                answer.raise_for_status()
            except httpx.HTTPError as error:
                log.debug("the report did not arrive", extra={"error": repr(error)})

    def _snapshot(self, config: wire.GatewayConfig | None) -> xds.Snapshot:
        return xds.unconfigured() if config is None else xds.snapshot(config, bootstrap.options(self._settings))


def _routed(config: wire.GatewayConfig | None) -> set[tuple[str, int]]:
    """Versions that some stage sends traffic to."""
    models = config.models if config is not None else []
    return {
        (model.model, entry.version)
        for model in models
        for stage in model.stages
        for entry in stage.weights
        if entry.weight > 0
    }


async def serve(settings: Settings) -> None:
    """Run a companion until SIGTERM or SIGINT."""
    task = asyncio.create_task(Companion(settings).run())
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, task.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await task


def main() -> int:
    logs.configure(part="gateway")
    try:
        asyncio.run(serve(Settings.from_env()))
    except errors.GatewayError as error:
        log.error("the gateway's companion ends", extra={"error": str(error)})
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
