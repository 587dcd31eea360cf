from __future__ import annotations

import pytest

from serving.api import settings
from serving.db import engine


def test_defaults_need_only_the_database() -> None:
    chosen = settings.Settings.from_env({"SLIPWAY_DATABASE_URL": "sqlite:////tmp/a.db"})
    assert (chosen.host, chosen.port) == ("127.0.0.1", 8090)
    assert (chosen.limits.heartbeat_ttl_s, chosen.limits.rollback_window_s) == (30, 600)


def test_missing_database_is_said_with_an_example() -> None:
    with pytest.raises(settings.SettingsError, match="expected sqlite:"):
        settings.Settings.from_env({})


@pytest.mark.parametrize("value", ["soon", "-1", "nan", "inf"])
def test_number_that_cannot_be_used_is_named(value: str) -> None:
    env = {"SLIPWAY_DATABASE_URL": "sqlite:////tmp/a.db", "SLIPWAY_ROLLBACK_WINDOW_S": value}
    with pytest.raises(settings.SettingsError, match="SLIPWAY_ROLLBACK_WINDOW_S"):
        settings.Settings.from_env(env)


@pytest.mark.parametrize("url", ["mysql://root@localhost/a", "sqlite://", "sqlite:///:memory:"])
def test_database_that_cannot_keep_what_it_is_given_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="SLIPWAY_DATABASE_URL"):
        engine.Database(url)
