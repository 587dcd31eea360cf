"""Two processes on one cache, a real bucket behind them, and SIGKILL at bad moments."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from model_store import cache, download, errors, settings, store
from tests.integration.model_store.conftest import MIB, Archive
from tests.support import faulty_proxy, waiting

pytestmark = pytest.mark.integration

MakeArchive = Callable[..., Archive]
REPOSITORY = Path(__file__).resolve().parents[3]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def start(
    root: Path, make_settings: Callable[..., settings.Settings]
) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start ``hold.py`` on an archive."""
    started: list[subprocess.Popen[str]] = []

    def run(archive: Archive, *, limit: int, endpoint: str | None = None) -> subprocess.Popen[str]:
        where = make_settings() if endpoint is None else make_settings(endpoint=endpoint)
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.integration.model_store.hold",
                str(root),
                str(limit),
                archive.digest,
                str(archive.size),
            ],
            env=os.environ | where.environment(),
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()


def holding(process: subprocess.Popen[str]) -> Path:
    """Wait until the process holds its archive."""
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    assert line, f"the holder ended with {process.wait()}"
    return Path(line)


def test_two_processes_fetch_an_archive_once_and_share_it(
    start: Callable[..., subprocess.Popen[str]],
    bucket_store: store.Store,
    proxy: faulty_proxy.FaultyProxy,
    make_archive: MakeArchive,
) -> None:
    archive = make_archive()
    bucket_store.publish(archive.path, archive.document)
    both = [start(archive, limit=100 * MIB, endpoint=proxy.endpoint) for _ in range(2)]
    paths = {holding(process) for process in both}
    assert len(paths) == 1
    assert paths.pop().read_bytes() == archive.path.read_bytes()
    assert archive.size <= proxy.forwarded_bytes < archive.size + MIB


def test_what_another_process_holds_stays_until_that_process_is_killed(
    root: Path, start: Callable[..., subprocess.Popen[str]], bucket_store: store.Store, make_archive: MakeArchive
) -> None:
    held, wanted = make_archive(6 * MIB, seed=1), make_archive(6 * MIB, seed=2)
    for archive in (held, wanted):
        bucket_store.publish(archive.path, archive.document)
    holder = start(held, limit=10 * MIB)
    path = holding(holder)
    mine = cache.Cache(root, 10 * MIB)
    with pytest.raises(errors.CacheTooSmall, match="in use"):
        mine.acquire(bucket_store, wanted.digest, wanted.size)
    assert path.exists()
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    mine.acquire(bucket_store, wanted.digest, wanted.size).release()
    assert not path.exists()


def test_a_fetch_whose_process_was_killed_is_resumed_by_the_next_one(
    root: Path,
    start: Callable[..., subprocess.Popen[str]],
    bucket_store: store.Store,
    proxied: store.Store,
    proxy: faulty_proxy.FaultyProxy,
    make_archive: MakeArchive,
) -> None:
    archive = make_archive(40 * MIB)
    bucket_store.publish(archive.path, archive.document)
    proxy.after(25 * MIB, "stall")
    victim = start(archive, limit=100 * MIB, endpoint=proxy.endpoint)
    journal = download.journal_path(root / "archives" / archive.digest / cache.ARCHIVE)
    waiting.wait_until(
        lambda: journal.exists() and len(journal.read_text().splitlines()) >= 4, timeout_s=30, what="three parts"
    )
    victim.send_signal(signal.SIGKILL)
    victim.wait()
    proxy.set("cut")
    before = proxy.forwarded_bytes
    with cache.Cache(root, 100 * MIB).acquire(proxied, archive.digest, archive.size) as lease:
        assert lease.archive.read_bytes() == archive.path.read_bytes()
    assert proxy.forwarded_bytes - before < 30 * MIB


def test_a_store_that_comes_back_is_resumed_through_the_cache(
    root: Path,
    bucket_store: store.Store,
    proxied: store.Store,
    proxy: faulty_proxy.FaultyProxy,
    make_archive: MakeArchive,
) -> None:
    archive = make_archive()
    bucket_store.publish(archive.path, archive.document)
    mine = cache.Cache(root, 100 * MIB)
    proxy.after(12 * MIB, "refuse")
    with pytest.raises(errors.StoreUnreachable):
        mine.acquire(proxied, archive.digest, archive.size)
    proxy.set("pass")
    mine.acquire(proxied, archive.digest, archive.size).release()
    proxy.set("refuse")
    with mine.acquire(proxied, archive.digest, archive.size) as lease:  # the bucket is gone, the archive is here
        assert lease.archive.stat().st_size == archive.size
