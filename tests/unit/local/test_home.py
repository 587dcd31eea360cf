from __future__ import annotations

import stat
from pathlib import Path

import pytest

from serving.local import errors
from serving.local.home import Home, Stack, Store, Supervisor


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path / "home")
    home.create()
    return home


def stack(**changes: object) -> Stack:
    fields: dict[str, object] = {
        "gateway": "http://127.0.0.1:1",
        "control_plane": "http://127.0.0.1:2",
        "agent": "http://127.0.0.1:3",
        "store": Store(url="s3://slipway", endpoint="http://127.0.0.1:4", access_key="a", secret_key="b"),
        "ports": {"gateway": 1},
    }
    return Stack.model_validate(fields | changes)


def test_only_the_owner_can_read_the_credentials(home: Home) -> None:
    home.write(stack())
    assert stat.S_IMODE(home.stack_file.stat().st_mode) == 0o600
    assert stat.S_IMODE(home.root.stat().st_mode) == 0o700


def test_a_stack_is_read_as_it_was_written(home: Home) -> None:
    written = stack(supervisor=Supervisor.this())
    home.write(written)
    assert home.read() == written


def test_a_home_without_a_stack_or_with_a_torn_file_has_none(home: Home) -> None:
    assert home.read() is None
    home.stack_file.write_text('{"gateway": "ht')
    assert home.read() is None


def test_a_home_is_locked_by_one_and_the_refusal_names_it_and_the_way_out(home: Home) -> None:
    with home.lock(), pytest.raises(errors.AlreadyRunning, match=rf"{home.root}.*slipway down --home {home.root}"):
        home.lock()
    home.lock().release()


def test_a_supervisor_is_told_by_pid_and_creation_time() -> None:
    this = Supervisor.this()
    assert this.process() is not None
    assert Supervisor(pid=this.pid, create_time=this.create_time - 100).process() is None


def test_a_folder_that_cannot_be_made_is_one_line_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(errors.HomeUnusable, match=f"{tmp_path}/file/home"):
        Home(tmp_path / "file" / "home").create()


def test_the_settings_of_the_own_store_carry_its_credentials() -> None:
    settings = stack().store.settings()
    assert (settings.bucket, settings.addressing) == ("slipway", "path")
    assert (settings.access_key, settings.secret_key) == ("a", "b")
