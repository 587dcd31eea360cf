"""The control plane's settings, all from the environment; ``docs/control-plane.md`` lists them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from serving.domain import facts

DEFAULT_MAX_BODY_BYTES = 4 * 1024 * 1024
"""Of one request: a manifest with its golden outputs, or a replica's report with tracebacks."""


class SettingsError(ValueError):
    """A variable has a value that cannot be used; the message names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    database_url: str
    host: str = "127.0.0.1"
    port: int = 8090
    limits: facts.Limits = field(default_factory=facts.Limits)
    max_body_bytes: int = DEFAULT_MAX_BODY_BYTES
    max_wait_s: float = 60
    """Of a long poll; a client may ask for less, and gets no more."""
    log_level: str = "info"

    @classmethod
    def from_env(cls, environment: Mapping[str, str] | None = None) -> Settings:
        """Read ``SLIPWAY_DATABASE_URL`` and its companions.

        Raises:
            SettingsError: one is missing or malformed.
        """
        env = os.environ if environment is None else environment
        url = env.get("SLIPWAY_DATABASE_URL")
        if not url:
            raise SettingsError(
                "SLIPWAY_DATABASE_URL is not set; expected sqlite:////path/control.db or postgresql+psycopg://USER@HOST/NAME"
            )
        defaults = facts.Limits()
        return cls(
            database_url=url,
            host=env.get("SLIPWAY_API_HOST") or "127.0.0.1",
            port=int(_number(env, "SLIPWAY_API_PORT", 8090, low=0, high=65535)),
            limits=facts.Limits(
                heartbeat_ttl_s=_number(env, "SLIPWAY_HEARTBEAT_TTL_S", defaults.heartbeat_ttl_s, low=1),
                rollback_window_s=_number(env, "SLIPWAY_ROLLBACK_WINDOW_S", defaults.rollback_window_s, low=0),
                loading_timeout_s=_number(env, "SLIPWAY_LOADING_TIMEOUT_S", defaults.loading_timeout_s, low=1),
                shifting_timeout_s=_number(env, "SLIPWAY_SHIFTING_TIMEOUT_S", defaults.shifting_timeout_s, low=1),
                in_flight_timeout_s=_number(env, "SLIPWAY_IN_FLIGHT_TIMEOUT_S", defaults.in_flight_timeout_s, low=0),
            ),
            max_body_bytes=int(_number(env, "SLIPWAY_API_MAX_BODY_BYTES", DEFAULT_MAX_BODY_BYTES, low=1024)),
            log_level=env.get("SLIPWAY_LOG_LEVEL") or "info",
        )


def _number(env: Mapping[str, str], name: str, default: float, *, low: float, high: float = 31_536_000_000) -> float:
    text = env.get(name)
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not low <= value <= high:
        raise SettingsError(f"{name} is {text!r}; expected a number from {low:g} to {high:g}")
    return value
