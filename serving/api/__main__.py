"""``python -m serving.api``: the control plane as a process."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from types import FrameType

import fastapi
import uvicorn

from model_store import settings as store_settings
from model_store import store
from serving import logs
from serving.api import app, context
from serving.api import settings as configuration

GRACE_S = 10
"""For requests under way when the process is told to stop; long polls end at once."""


class Server(uvicorn.Server):
    """Ends the long polls as soon as the process is told to stop: they would hold it for a minute."""

    def __init__(self, application: fastapi.FastAPI, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._application = application
        self._loop: asyncio.AbstractEventLoop | None = None

    async def startup(self, *args: object, **kwargs: object) -> None:
        self._loop = asyncio.get_running_loop()
        await super().startup(*args, **kwargs)  # pyright: ignore[reportArgumentType]

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        # Unlike uvicorn's own, it does not raise the signal again at the end: having stopped as told is a success.
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True
        if self._loop is not None:
            current: context.Context = self._application.state.context
            self._loop.call_soon_threadsafe(current.board.close)


def main() -> int:
    """Serve until SIGTERM or SIGINT; 2 on settings that cannot work, 1 when it could not start."""
    try:
        settings = configuration.Settings.from_env()
        archives = store.Store(store_settings.Settings.from_env()) if store_settings.configured() else None
        application = app.create(settings, archives=archives)
    except ValueError as error:
        print(f"slipway control plane: {error}", file=sys.stderr)  # noqa: T201 - a setting is wrong: one clear line
        return 2
    logs.configure(part="control-plane", level=settings.log_level)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    logging.getLogger("uvicorn.error").addFilter(_without_colors)
    server = Server(
        application,
        uvicorn.Config(
            application,
            host=settings.host,
            port=settings.port,
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=GRACE_S,
            timeout_keep_alive=75,
            lifespan="on",
            server_header=False,
        ),
    )
    server.run()
    return 0 if server.started else 1


def _without_colors(record: logging.LogRecord) -> bool:
    vars(record).pop("color_message", None)
    return True


if __name__ == "__main__":
    sys.exit(main())
