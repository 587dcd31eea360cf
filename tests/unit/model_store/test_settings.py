"""Where the store is, read from the environment."""

from __future__ import annotations

import pytest

from model_store import errors, settings


def test_the_environment_says_it_all_and_can_be_written_back() -> None:
    environment = {
        "SLIPWAY_STORE": "s3://models/team/a",
        "SLIPWAY_STORE_ENDPOINT": "http://127.0.0.1:1",
        "SLIPWAY_STORE_REGION": "eu-west-1",
        "SLIPWAY_STORE_ADDRESSING": "path",
        "SLIPWAY_STORE_KMS_KEY": "key",
        "SLIPWAY_STORE_WORKERS": "3",
    }
    found = settings.Settings.from_env(environment)
    assert (found.bucket, found.prefix, found.url) == ("models", "team/a/", "s3://models/team/a/")
    assert settings.Settings.from_env(found.environment()) == found
    assert found.at("s3://other").url == "s3://other/"


def test_a_secret_is_not_shown() -> None:
    assert "hush" not in repr(settings.Settings(bucket="b", access_key="hush", secret_key="hush"))


def test_nothing_set_is_told_with_what_to_set() -> None:
    assert not settings.configured({})
    with pytest.raises(errors.SettingsError, match=r"SLIPWAY_STORE is not set.*s3://bucket"):
        settings.Settings.from_env({})


@pytest.mark.parametrize("url", ["models", "https://models/x", "s3://", "s3://key:secret@models", "s3://b?x=1"])
def test_what_is_no_bucket_is_refused(url: str) -> None:
    with pytest.raises(errors.SettingsError, match="s3://bucket"):
        settings.Settings.from_url(url)


def test_unknown_addressing_and_tiny_parts_are_refused() -> None:
    with pytest.raises(errors.SettingsError, match="auto, path or virtual"):
        settings.Settings.from_env({"SLIPWAY_STORE": "s3://b", "SLIPWAY_STORE_ADDRESSING": "dns"})
    with pytest.raises(errors.SettingsError, match="SLIPWAY_STORE_WORKERS is 'many'"):
        settings.Settings.from_env({"SLIPWAY_STORE": "s3://b", "SLIPWAY_STORE_WORKERS": "many"})
    with pytest.raises(errors.SettingsError, match="5242880"):
        settings.Settings(bucket="b", part_bytes=1)
