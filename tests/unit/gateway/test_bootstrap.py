from __future__ import annotations

import json
from pathlib import Path

import pytest

from serving.gateway import bootstrap, errors, files
from serving.gateway.settings import Settings
from tests.support import gateway as g

ENVIRONMENT = {
    "SLIPWAY_GATEWAY_DIR": "/var/gateway",
    "SLIPWAY_GATEWAY_ADMIN_PORT": "9901",
    "SLIPWAY_GATEWAY_OIP_PORT": "9902",
}


def settings(folder: Path) -> Settings:
    return Settings(folder=folder, port=8080, admin_port=9901, oip_port=9902)


def test_settings_come_from_the_environment_with_defaults() -> None:
    read = Settings.from_env(ENVIRONMENT | {"SLIPWAY_CONTROL_URL": "http://c:1/", "SLIPWAY_GATEWAY_PORT": "8000"})
    assert (read.control_url, read.port, read.host, read.max_request_bytes) == ("http://c:1", 8000, "127.0.0.1", None)
    assert read.public_url == "http://127.0.0.1:8000"


@pytest.mark.parametrize("name", sorted(ENVIRONMENT))
def test_a_missing_setting_is_named(name: str) -> None:
    with pytest.raises(errors.InvalidSetting, match=name):
        Settings.from_env({key: value for key, value in ENVIRONMENT.items() if key != name})


def test_a_port_that_is_no_number_is_refused() -> None:
    with pytest.raises(errors.InvalidSetting, match="'x', expected a number"):
        Settings.from_env(ENVIRONMENT | {"SLIPWAY_GATEWAY_PORT": "x"})


def test_a_first_start_has_all_files_and_serves_nothing_yet(tmp_path: Path) -> None:
    path = bootstrap.write(settings(tmp_path))
    layout = files.Layout(root=tmp_path)
    assert path == layout.bootstrap
    assert json.loads(layout.cds.read_text())["resources"] == []
    assert json.loads(layout.rds.read_text())["version_info"] == ""


def test_a_later_start_comes_back_with_the_last_good_configuration(tmp_path: Path) -> None:
    layout = files.Layout(root=tmp_path)
    layout.create()
    config = g.config(g.model("digits", [g.version(4)], production=4))
    layout.remember(config)
    bootstrap.write(settings(tmp_path))
    assert json.loads(layout.rds.read_text())["version_info"] == config.revision
    found = {resource["name"] for resource in json.loads(layout.cds.read_text())["resources"]}
    assert found == {"digits@4@rest", "digits@4@grpc"}


def test_a_damaged_configuration_does_not_keep_the_gateway_down(tmp_path: Path) -> None:
    layout = files.Layout(root=tmp_path)
    layout.create()
    layout.config.write_text('{"revision": ')
    bootstrap.write(settings(tmp_path))
    assert layout.last_good() is None


def test_the_admin_interface_is_on_loopback_wherever_the_listener_is(tmp_path: Path) -> None:
    document = bootstrap.document(Settings(folder=tmp_path, host="0.0.0.0", port=80, admin_port=9901, oip_port=9902))
    address = document["admin"]["address"]["socket_address"]
    assert (address["address"], address["port_value"]) == ("127.0.0.1", 9901)
    listener = document["static_resources"]["listeners"][0]
    assert listener["address"]["socket_address"]["address"] == "0.0.0.0"
    assert listener["enable_reuse_port"] is False


def test_the_command_starts_envoy_itself_and_not_its_wrapper(tmp_path: Path) -> None:
    command = bootstrap.command(settings(tmp_path))
    assert Path(command[0]).stat().st_size > 10_000_000
    assert str(files.Layout(root=tmp_path).bootstrap) in command


def test_a_file_is_replaced_whole_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    files.write(path, {"a": 1})
    files.write(path, {"a": 2})
    assert json.loads(path.read_text()) == {"a": 2}
    assert list(tmp_path.iterdir()) == [path]
