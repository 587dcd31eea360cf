"""The cache's promises, with a source that counts and fails on demand."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from model_store import cache, download, errors, parts

KIB = 1024


def body_of(seed: int, size: int = 10 * KIB) -> bytes:
    return bytes([seed]) * size


def digest_of(seed: int, size: int = 10 * KIB) -> str:
    return hashlib.sha256(body_of(seed, size)).hexdigest()


class Source:
    """Hands out ``body_of(seed)`` under its digest."""

    def __init__(self, *seeds: int, size: int = 10 * KIB) -> None:
        self.bodies = {digest_of(seed, size): body_of(seed, size) for seed in seeds}
        self.fetched: list[str] = []
        self.failure: Exception | None = None
        self.during: Callable[[], None] = lambda: None

    def fetch(self, digest: str, size_bytes: int, destination: Path, *, progress: parts.Progress | None = None) -> None:
        self.fetched.append(digest)
        self.during()
        if self.failure is not None:
            download.partial_path(destination).write_bytes(self.bodies[digest][:100])
            raise self.failure
        destination.write_bytes(self.bodies[digest])


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def take(where: cache.Cache, source: Source, seed: int, size: int = 10 * KIB) -> cache.Lease:
    return where.acquire(source, digest_of(seed, size), size)


def test_an_archive_is_fetched_once_and_then_served_from_disk(root: Path) -> None:
    source = Source(1)
    with take(cache.Cache(root, 100 * KIB), source, 1) as first:
        assert first.archive.read_bytes() == body_of(1)
    with take(cache.Cache(root, 100 * KIB), source, 1) as again:
        assert again.archive == first.archive
    assert len(source.fetched) == 1


def test_the_least_recently_used_archive_makes_room(root: Path) -> None:
    where, source = cache.Cache(root, 25 * KIB), Source(1, 2, 3)
    for seed in (1, 2, 1, 3):
        take(where, source, seed).release()
    assert {entry.digest for entry in where.entries()} == {digest_of(1), digest_of(3)}
    assert where.used_bytes() == 20 * KIB


def test_what_is_held_is_never_removed_and_the_error_says_what_is_in_use(root: Path) -> None:
    where, source = cache.Cache(root, 25 * KIB), Source(1, 2, 3)
    with take(where, source, 1) as one, take(where, source, 2):
        with pytest.raises(errors.CacheTooSmall, match=f"{20 * KIB} are in use"):
            take(cache.Cache(root, 25 * KIB), source, 3)
        assert one.archive.exists()
    take(where, source, 3).release()
    assert digest_of(3) in {entry.digest for entry in where.entries()}


def test_one_of_two_holders_letting_go_does_not_free_the_archive(root: Path) -> None:
    where, source = cache.Cache(root, 15 * KIB), Source(1, 2)
    first, second = take(where, source, 1), take(where, source, 1)
    first.release()
    first.release()
    with pytest.raises(errors.CacheTooSmall):
        take(where, source, 2)
    second.release()
    take(where, source, 2).release()
    assert not second.archive.exists()


def test_an_archive_larger_than_the_limit_is_refused_before_anything_is_removed(root: Path) -> None:
    where, source = cache.Cache(root, 25 * KIB), Source(1)
    take(where, source, 1).release()
    with pytest.raises(errors.CacheTooSmall, match="SLIPWAY_CACHE_LIMIT_BYTES"):
        where.acquire(source, "f" * 64, 26 * KIB)
    assert [entry.digest for entry in where.entries()] == [digest_of(1)]


def test_an_archive_that_changed_on_disk_is_fetched_again(root: Path) -> None:
    where, source = cache.Cache(root, 100 * KIB), Source(1)
    with take(where, source, 1) as lease:
        archive = lease.archive
    archive.chmod(0o600)
    archive.write_bytes(body_of(9))
    with take(where, source, 1):
        assert archive.read_bytes() == body_of(1)
    assert len(source.fetched) == 2


def test_after_a_boot_an_archive_is_hashed_again_but_not_fetched(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    where, source = cache.Cache(root, 100 * KIB), Source(1)
    take(where, source, 1).release()
    hashed: list[Path] = []
    sha256 = cache._sha256
    monkeypatch.setattr(cache, "_boot_id", lambda: "another boot")
    monkeypatch.setattr(cache, "_sha256", lambda path: (hashed.append(path), sha256(path))[1])
    take(where, source, 1).release()
    take(where, source, 1).release()
    assert len(source.fetched) == 1
    assert len(hashed) == 1


def test_a_failed_fetch_keeps_its_place_for_a_resume_and_holds_nothing(root: Path) -> None:
    where, source = cache.Cache(root, 25 * KIB), Source(1, 2)
    source.failure = errors.StoreUnreachable("gone")
    with pytest.raises(errors.StoreUnreachable):
        take(where, source, 1)
    assert [(entry.bytes, entry.complete) for entry in where.entries()] == [(10 * KIB, False)]
    source.failure = None
    with take(where, source, 1), take(where, source, 2):
        assert where.used_bytes() == 20 * KIB


def test_the_remains_of_a_failed_fetch_make_room_like_anything_else(root: Path) -> None:
    where, source = cache.Cache(root, 15 * KIB), Source(1, 2)
    source.failure = errors.StoreUnreachable("gone")
    with pytest.raises(errors.StoreUnreachable):
        take(where, source, 1)
    source.failure = None
    take(where, source, 2).release()
    assert [entry.digest for entry in where.entries()] == [digest_of(2)]


def test_a_fetch_under_way_counts_in_full_and_is_not_removed(root: Path) -> None:
    source, other = Source(1), Source(2)
    errors_seen: list[Exception] = []

    def meanwhile() -> None:
        thread = threading.Thread(target=attempt)
        thread.start()
        thread.join()

    def attempt() -> None:
        try:
            take(cache.Cache(root, 15 * KIB), other, 2)
        except Exception as error:
            errors_seen.append(error)

    source.during = meanwhile
    take(cache.Cache(root, 15 * KIB), source, 1).release()
    assert [type(error) for error in errors_seen] == [errors.CacheTooSmall]
    assert other.fetched == []


def test_two_threads_that_want_one_archive_fetch_it_once(root: Path) -> None:
    source = Source(1)
    barrier = threading.Barrier(4)
    leases: list[cache.Lease] = []

    def work() -> None:
        where = cache.Cache(root, 100 * KIB)
        barrier.wait(10)
        leases.append(take(where, source, 1))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(leases) == 4
    assert len(source.fetched) == 1
    for lease in leases:
        lease.release()


def test_waiting_for_another_fetch_can_be_bounded(root: Path) -> None:
    source = Source(1)
    seen: list[Exception] = []

    def impatient() -> None:
        try:
            cache.Cache(root, 100 * KIB).acquire(source, digest_of(1), 10 * KIB, timeout_s=0.1)
        except Exception as error:
            seen.append(error)

    def meanwhile() -> None:
        thread = threading.Thread(target=impatient)
        thread.start()
        thread.join()

    source.during = meanwhile
    take(cache.Cache(root, 100 * KIB), source, 1).release()
    assert [type(error) for error in seen] == [errors.StoreTimeout]


def test_a_full_disk_is_named(root: Path) -> None:
    source = Source(1)
    source.failure = OSError(28, os.strerror(28))
    with pytest.raises(errors.NoSpace, match="disk is full"):
        take(cache.Cache(root, 100 * KIB), source, 1)


def test_cached_archives_are_private_and_read_only(root: Path) -> None:
    with take(cache.Cache(root, 100 * KIB), Source(1), 1) as lease:
        assert lease.archive.stat().st_mode & 0o777 == 0o400
        assert root.stat().st_mode & 0o077 == 0
