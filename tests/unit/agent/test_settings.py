from __future__ import annotations

from pathlib import Path

import pytest

from serving.agent import errors
from serving.agent.settings import Settings

LEAST = {"SLIPWAY_CONTROL_URL": "http://control:8090/", "SLIPWAY_AGENT_HOME": "/var/agent", "SLIPWAY_GPUS": "0"}


def test_little_is_needed_and_everything_stays_on_loopback() -> None:
    settings = Settings.from_env(LEAST)
    assert settings.control_url == "http://control:8090"
    assert settings.home == Path("/var/agent")
    assert {settings.host, settings.advertise_host, settings.bind_host} == {"127.0.0.1"}
    assert settings.cores >= 1


def test_an_advertised_address_is_also_the_one_that_is_listened_on() -> None:
    settings = Settings.from_env(LEAST | {"SLIPWAY_ADVERTISE_HOST": "10.0.0.7"})
    assert (settings.host, settings.bind_host) == ("10.0.0.7", "10.0.0.7")


def test_addresses_can_be_told_apart() -> None:
    settings = Settings.from_env(
        LEAST
        | {"SLIPWAY_ADVERTISE_HOST": "10.0.0.7", "SLIPWAY_BIND_HOST": "0.0.0.0", "SLIPWAY_AGENT_HOST": "127.0.0.1"}
    )
    assert (settings.advertise_host, settings.bind_host, settings.host) == ("10.0.0.7", "0.0.0.0", "127.0.0.1")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SLIPWAY_CONTROL_URL", ""),
        ("SLIPWAY_AGENT_HOME", ""),
        ("SLIPWAY_AGENT_PORT", "99999"),
        ("SLIPWAY_CORES", "two"),
        ("SLIPWAY_CACHE_LIMIT_BYTES", "-1"),
        ("SLIPWAY_PORT_RANGE", "20000"),
        ("SLIPWAY_PORT_RANGE", "30000-20000"),
        ("SLIPWAY_PORT_RANGE", "80-90"),
    ],
)
def test_a_setting_that_cannot_be_used_is_named(name: str, value: str) -> None:
    with pytest.raises(errors.SettingsError, match=name):
        Settings.from_env(LEAST | {name: value})
