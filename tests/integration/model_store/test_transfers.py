"""Publish and fetch against a real S3, including everything that goes wrong on the way."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from model_store import download, errors, settings, store, upload
from tests.integration.model_store.conftest import MIB, Archive
from tests.support import faulty_proxy, seaweed

pytestmark = pytest.mark.integration

MakeArchive = Callable[..., Archive]
MakeSettings = Callable[..., settings.Settings]


def key_of(archive: Archive) -> str:
    return f"team/{store.archive_key(archive.digest)}"


def test_a_published_archive_comes_back_byte_for_byte_with_its_manifest(
    bucket_store: store.Store, make_archive: MakeArchive, tmp_path: Path
) -> None:
    archive = make_archive()
    seen: list[tuple[int, int]] = []
    assert (
        bucket_store.publish(archive.path, archive.document, progress=lambda *at: seen.append(at)) == archive.document
    )
    bucket_store.fetch(archive.digest, archive.size, tmp_path / "back.mar")
    assert (tmp_path / "back.mar").read_bytes() == archive.path.read_bytes()
    assert bucket_store.manifest("digits", archive.digest) == archive.document
    assert list(bucket_store.digests("digits")) == [archive.digest]
    assert bucket_store.head(archive.digest) == archive.size
    assert seen[-1] == (archive.size, archive.size)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert {path.name for path in tmp_path.iterdir()} == {archive.path.name, "back.mar"}


@pytest.mark.parametrize("size", [0, 1, 5 * MIB, 5 * MIB + 1, 10 * MIB])
def test_sizes_around_the_part_size_survive_the_round_trip(
    bucket_store: store.Store, make_archive: MakeArchive, tmp_path: Path, size: int
) -> None:
    archive = make_archive(size)
    bucket_store.publish(archive.path, archive.document)
    bucket_store.fetch(archive.digest, size, tmp_path / "back.mar")
    assert (tmp_path / "back.mar").read_bytes() == archive.path.read_bytes()


def test_pushing_the_same_digest_again_keeps_the_first_manifest_and_sends_nothing(
    bucket_store: store.Store, weed: seaweed.Seaweed, bucket: str, make_archive: MakeArchive
) -> None:
    archive = make_archive()
    bucket_store.publish(archive.path, archive.document)
    before = weed.client().head_object(Bucket=bucket, Key=key_of(archive))["LastModified"]
    second = archive.document.model_copy(update={"description": "another publisher"})
    assert bucket_store.publish(archive.path, second) == archive.document
    assert weed.client().head_object(Bucket=bucket, Key=key_of(archive))["LastModified"] == before


def test_two_publishers_of_one_digest_at_once_both_succeed_and_leave_one_good_object(
    make_settings: MakeSettings, weed: seaweed.Seaweed, bucket: str, make_archive: MakeArchive, tmp_path: Path
) -> None:
    archive = make_archive()
    start = threading.Barrier(2)
    results: list[object] = []

    def publish() -> None:
        publisher = store.Store(make_settings())
        publisher.check()
        start.wait(10)
        try:
            results.append(publisher.publish(archive.path, archive.document))
        except Exception as error:
            results.append(error)

    threads = [threading.Thread(target=publish) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [archive.document, archive.document]
    store.Store(make_settings()).fetch(archive.digest, archive.size, tmp_path / "back.mar")
    uploads = weed.client().list_multipart_uploads(Bucket=bucket).get("Uploads", [])
    assert uploads == []


def test_an_upload_that_was_cut_is_resumed_and_sends_only_the_missing_parts(
    proxied: store.Store,
    proxy: faulty_proxy.FaultyProxy,
    bucket_store: store.Store,
    make_archive: MakeArchive,
    tmp_path: Path,
) -> None:
    archive = make_archive(40 * MIB)
    proxied.check()
    proxy.after(25 * MIB, "refuse")
    with pytest.raises(errors.StoreUnreachable, match="resumes"):
        proxied.publish(archive.path, archive.document)
    assert bucket_store.head(archive.digest) is None
    proxy.set("pass")
    before = proxy.forwarded_bytes
    proxied.publish(archive.path, archive.document)
    assert proxy.forwarded_bytes - before < 30 * MIB
    bucket_store.fetch(archive.digest, archive.size, tmp_path / "back.mar")


def test_a_download_that_vanishes_midway_fails_clearly_and_the_next_one_resumes(
    bucket_store: store.Store,
    proxied: store.Store,
    proxy: faulty_proxy.FaultyProxy,
    make_archive: MakeArchive,
    tmp_path: Path,
) -> None:
    archive = make_archive(40 * MIB)
    bucket_store.publish(archive.path, archive.document)
    target = tmp_path / "back.mar"
    proxy.after(25 * MIB, "refuse")
    with pytest.raises(errors.StoreUnreachable) as caught:
        proxied.fetch(archive.digest, archive.size, target)
    assert caught.value.transient
    assert not target.exists()
    proxy.set("pass")
    before = proxy.forwarded_bytes
    proxied.fetch(archive.digest, archive.size, target)
    assert proxy.forwarded_bytes - before < 30 * MIB
    assert target.read_bytes() == archive.path.read_bytes()


def test_a_connection_that_is_reset_midway_is_taken_up_again_within_the_same_call(
    bucket_store: store.Store,
    proxied: store.Store,
    proxy: faulty_proxy.FaultyProxy,
    make_archive: MakeArchive,
    tmp_path: Path,
) -> None:
    archive = make_archive()
    bucket_store.publish(archive.path, archive.document)
    proxy.after(8 * MIB, "cut")
    proxied.fetch(archive.digest, archive.size, tmp_path / "back.mar")
    assert proxy.forwarded_bytes < archive.size + 4 * MIB


def test_a_store_that_stalls_is_a_timeout_not_a_hang(
    bucket_store: store.Store,
    proxied: store.Store,
    proxy: faulty_proxy.FaultyProxy,
    make_archive: MakeArchive,
    tmp_path: Path,
) -> None:
    archive = make_archive()
    bucket_store.publish(archive.path, archive.document)
    proxy.after(8 * MIB, "stall")
    with pytest.raises(errors.StoreTimeout, match="did not answer in time"):
        proxied.fetch(archive.digest, archive.size, tmp_path / "back.mar")


def test_a_truncated_object_is_refused_before_a_byte_is_fetched(
    bucket_store: store.Store, weed: seaweed.Seaweed, bucket: str, make_archive: MakeArchive, tmp_path: Path
) -> None:
    archive = make_archive()
    weed.client().put_object(Bucket=bucket, Key=key_of(archive), Body=archive.path.read_bytes()[:-1])
    with pytest.raises(errors.ArchiveTruncated, match=f"{archive.size - 1} bytes where {archive.size}"):
        bucket_store.fetch(archive.digest, archive.size, tmp_path / "back.mar")
    with pytest.raises(errors.ArchiveTruncated):
        bucket_store.publish(archive.path, archive.document)
    assert [path.name for path in tmp_path.iterdir()] == [archive.path.name]


def test_an_object_with_the_right_size_and_wrong_bytes_is_never_handed_out(
    bucket_store: store.Store, weed: seaweed.Seaweed, bucket: str, make_archive: MakeArchive, tmp_path: Path
) -> None:
    archive = make_archive()
    body = bytearray(archive.path.read_bytes())
    body[-1] ^= 1
    weed.client().put_object(Bucket=bucket, Key=key_of(archive), Body=bytes(body))
    with pytest.raises(errors.DigestMismatch, match=archive.digest):
        bucket_store.fetch(archive.digest, archive.size, tmp_path / "back.mar")
    assert [path.name for path in tmp_path.iterdir()] == [archive.path.name]


def test_a_damaged_partial_file_is_found_out_and_fetched_again(
    bucket_store: store.Store,
    proxied: store.Store,
    proxy: faulty_proxy.FaultyProxy,
    make_archive: MakeArchive,
    tmp_path: Path,
) -> None:
    archive = make_archive(40 * MIB)
    bucket_store.publish(archive.path, archive.document)
    target = tmp_path / "back.mar"
    proxy.after(25 * MIB, "refuse")
    with pytest.raises(errors.StoreUnreachable):
        proxied.fetch(archive.digest, archive.size, target)
    done = int(download.journal_path(target).read_text().splitlines()[1])
    with download.partial_path(target).open("r+b") as file:
        file.seek(done * 5 * MIB)
        file.write(b"\x00damage\x00")
    bucket_store.fetch(archive.digest, archive.size, target)
    assert target.read_bytes() == archive.path.read_bytes()


def test_an_archive_that_changed_since_it_was_packed_is_not_published(
    bucket_store: store.Store, weed: seaweed.Seaweed, bucket: str, make_archive: MakeArchive
) -> None:
    archive = make_archive()
    with archive.path.open("r+b") as file:
        file.write(b"changed")
    with pytest.raises(errors.DigestMismatch, match="changed since it was packed"):
        bucket_store.publish(archive.path, archive.document)
    assert bucket_store.head(archive.digest) is None
    assert "Uploads" not in weed.client().list_multipart_uploads(Bucket=bucket)


def test_refused_credentials_are_named_as_such(make_settings: MakeSettings, make_archive: MakeArchive) -> None:
    archive = make_archive(10)
    stranger = store.Store(make_settings(secret_key="wrong"))
    with pytest.raises(errors.CredentialsRefused, match="refuses these credentials"):
        stranger.check()
    with pytest.raises(errors.CredentialsRefused):
        stranger.publish(archive.path, archive.document)
    with pytest.raises(errors.CredentialsRefused):
        stranger.head(archive.digest)


def test_a_missing_bucket_is_told_from_a_missing_object(
    make_settings: MakeSettings, bucket_store: store.Store, tmp_path: Path
) -> None:
    nowhere = store.Store(make_settings(bucket="no-such-bucket"))
    with pytest.raises(errors.BucketMissing, match="no-such-bucket"):
        nowhere.head("0" * 64)
    assert bucket_store.head("0" * 64) is None
    with pytest.raises(errors.ObjectMissing, match="push the version again"):
        bucket_store.fetch("0" * 64, 1, tmp_path / "x")


def test_an_unreachable_store_is_one_clear_error(make_settings: MakeSettings) -> None:
    port = seaweed.free_ports(1)[0]
    gone = store.Store(make_settings(endpoint=f"http://127.0.0.1:{port}"))
    with pytest.raises(errors.StoreUnreachable, match=str(port)):
        gone.check()


def test_a_missing_bucket_can_be_made_twice(make_settings: MakeSettings) -> None:
    fresh = store.Store(make_settings(bucket="made-by-ensure"))
    fresh.ensure_bucket()
    fresh.ensure_bucket()
    assert fresh.check().conditional_writes


def test_conditional_writes_are_found_on_a_store_that_has_them(
    make_settings: MakeSettings, weed: seaweed.Seaweed, bucket: str
) -> None:
    for _ in range(2):
        found = store.Store(make_settings()).check()
        assert found == store.Check(conditional_put=True, conditional_multipart=True)
    assert "Uploads" not in weed.client().list_multipart_uploads(Bucket=bucket)


def test_a_store_without_conditional_writes_is_detected_and_said(
    make_settings: MakeSettings, make_archive: MakeArchive
) -> None:
    archive = make_archive(10)

    def without_condition(**overrides: bool) -> store.Store:
        where = make_settings(**overrides)
        client = where.client()

        def forget(params: dict[str, dict[str, str]], **_: object) -> None:
            params["headers"].pop("If-None-Match", None)

        client.meta.events.register("before-call.s3", forget)
        return store.Store(where, client=client)

    with pytest.raises(errors.ConditionalWritesUnsupported, match="SLIPWAY_STORE_ALLOW_UNCONDITIONAL"):
        without_condition().publish(archive.path, archive.document)
    assert without_condition(allow_unconditional=True).publish(archive.path, archive.document) == archive.document


def test_a_write_that_lost_the_race_says_so_and_leaves_no_parts(
    bucket_store: store.Store,
    make_settings: MakeSettings,
    weed: seaweed.Seaweed,
    bucket: str,
    make_archive: MakeArchive,
) -> None:
    archive = make_archive()
    weed.client().put_object(Bucket=bucket, Key="taken", Body=b"first")
    with pytest.raises(upload.AlreadyThere):
        upload.upload(
            make_settings().client(),
            bucket=bucket,
            key="taken",
            source=archive.path,
            digest=archive.digest,
            part_bytes=5 * MIB,
            workers=2,
        )
    assert weed.client().get_object(Bucket=bucket, Key="taken")["Body"].read() == b"first"
    assert "Uploads" not in weed.client().list_multipart_uploads(Bucket=bucket)


def test_a_store_that_is_killed_and_started_again_still_has_what_was_published(make_archive: MakeArchive) -> None:
    archive = make_archive(10 * MIB)
    with seaweed.running(buckets=("model-bucket",)) as own:
        where = settings.Settings.from_env(own.environment("model-bucket"))
        mine = store.Store(where, client=own.client())
        mine.publish(archive.path, archive.document)
        own.stop(kill=True)
        own.start()
        assert mine.head(archive.digest) == archive.size
