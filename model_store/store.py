"""The bucket: immutable archives under their digest, and beside them what is known about them.

Layout below the prefix::

    archives/sha256/<digest>.mar
    manifests/<model>/<digest>.json      written after its archive: a manifest never names a missing one
    probes/conditional-writes            one byte; proves that the store honours If-None-Match

Nothing is ever overwritten: every write carries ``If-None-Match: *``.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import botocore.exceptions
import pydantic

from model_store import download, errors, faults, manifest, parts, settings, upload

logger = logging.getLogger(__name__)

PROBE_KEY = "probes/conditional-writes"
CONFLICT_RETRIES = 3
CONFLICT_RETRY_S = 0.5


@dataclass(frozen=True, kw_only=True)
class Check:
    """What :meth:`Store.check` found out; the bucket is reachable or it would have raised."""

    conditional_put: bool
    conditional_multipart: bool

    @property
    def conditional_writes(self) -> bool:
        return self.conditional_put and self.conditional_multipart


def archive_key(digest: str) -> str:
    return f"archives/sha256/{digest}.mar"


def manifest_key(model: str, digest: str) -> str:
    return f"manifests/{model}/{digest}.json"


class Store:
    """Thread-safe; one boto3 client. Every method raises only :class:`errors.ModelStoreError` for what S3 does.

    Raises:
        SettingsError: the settings make no client (an unknown profile, a malformed endpoint).
    """

    def __init__(self, where: settings.Settings, *, client: Any = None) -> None:
        self.settings = where
        try:
            self._client = where.client() if client is None else client
        except (ValueError, botocore.exceptions.BotoCoreError) as error:
            raise errors.SettingsError(f"cannot talk to {where.url}: {error}") from error
        self._checked: Check | None = None
        self._lock = threading.Lock()

    @property
    def where(self) -> str:
        endpoint = self._client.meta.endpoint_url
        return f"{self.settings.url} at {endpoint}"

    def ping(self) -> None:
        """Prove that the bucket answers, now.

        Raises:
            StoreError: no such bucket, refused, unreachable.
        """
        try:
            with self._translated("reach the bucket"):
                self._client.head_bucket(Bucket=self.settings.bucket)
        except errors.ObjectMissing as error:
            raise errors.BucketMissing(
                f"there is no bucket {self.settings.bucket} behind {self.where}; create it or correct SLIPWAY_STORE"
            ) from error

    def check(self) -> Check:
        """Prove that the bucket answers and find out whether it honours conditional writes.

        The first check of a bucket leaves a one-byte object behind, later ones write nothing. The answer is kept:
        :meth:`ping` asks anew whether the bucket is there.

        Raises:
            StoreError: no such bucket, refused, unreachable.
        """
        with self._lock:
            if self._checked is None:
                self.ping()
                with self._translated("check conditional writes"):
                    self._checked = Check(
                        conditional_put=self._probe_put(), conditional_multipart=self._probe_multipart()
                    )
            return self._checked

    def ensure_bucket(self) -> None:
        """Create the bucket if it is missing."""
        try:
            self.ping()
        except errors.BucketMissing:
            region = self._client.meta.region_name
            arguments: dict[str, Any] = {"Bucket": self.settings.bucket}
            if region not in (None, "us-east-1", "aws-global"):
                arguments["CreateBucketConfiguration"] = {"LocationConstraint": region}
            try:
                with self._translated("create the bucket"):
                    self._client.create_bucket(**arguments)
            except errors.StoreRefused as error:
                cause = error.__cause__
                if not (
                    isinstance(cause, botocore.exceptions.ClientError)
                    and faults.code(cause) in ("BucketAlreadyOwnedByYou", "BucketAlreadyExists")
                ):
                    raise
                self.ping()

    def publish(
        self, archive: Path, document: manifest.Manifest, *, progress: parts.Progress | None = None
    ) -> manifest.Manifest:
        """Put an archive and its manifest into the bucket, unless they are there.

        Safe to repeat and to run twice at once: all publishers of one digest end with the same objects. The archive
        is read and hashed once, while it is sent.

        Returns:
            The manifest in the bucket: of the first publisher, when there was one before.

        Raises:
            DigestMismatch: the file is not what the manifest says.
            ArchiveTruncated: the bucket holds a damaged object under this digest.
            ConditionalWritesUnsupported: and the settings do not allow to do without.
            NoSpace, StoreError: see :mod:`model_store.faults`.
        """
        found = archive.stat().st_size
        if found != document.size_bytes:
            raise errors.DigestMismatch(
                f"{archive} has {found} bytes where its manifest says {document.size_bytes};"
                " it changed since it was packed: pack and push again"
            )
        conditional = self._conditional()
        self._publish_archive(archive, document, conditional=conditional, progress=progress)
        key = manifest_key(document.model, document.digest)
        try:
            with self._translated(f"write {key}"):
                self._put(key, document.model_dump_json(indent=1).encode(), conditional=conditional)
        except upload.AlreadyThere:
            return self.manifest(document.model, document.digest)
        return document

    def fetch(self, digest: str, size_bytes: int, destination: Path, *, progress: parts.Progress | None = None) -> None:
        """Download an archive; ``destination`` appears only once its size and SHA-256 proved right.

        What a failed try has brought stays in ``<destination>.partial`` and is continued by the next one.

        Raises:
            ObjectMissing: no such archive.
            ArchiveTruncated: the object's size is not the registered one.
            DigestMismatch: its bytes are not.
            NoSpace, StoreError: see :mod:`model_store.faults`.
        """
        key = archive_key(digest)
        self._require_size(digest, size_bytes)
        with self._translated(f"download {key}"):
            download.download(
                self._client,
                bucket=self.settings.bucket,
                key=self.settings.prefix + key,
                digest=digest,
                size_bytes=size_bytes,
                destination=destination,
                part_bytes=self.settings.part_bytes,
                workers=self.settings.workers,
                attempts=self.settings.attempts,
                progress=progress,
            )

    def fetch_file(self, key: str, destination: Path, *, progress: parts.Progress | None = None) -> str:
        """Download any object below the prefix (a seed config's weights) and return its SHA-256."""
        size = self.size(key)
        if size is None:
            raise errors.ObjectMissing(f"there is no {key} in {self.where}; upload it or correct model_file")
        with self._translated(f"download {key}"):
            return download.download(
                self._client,
                bucket=self.settings.bucket,
                key=self.settings.prefix + key,
                digest=None,
                size_bytes=size,
                destination=destination,
                part_bytes=self.settings.part_bytes,
                workers=self.settings.workers,
                attempts=self.settings.attempts,
                progress=progress,
            )

    def head(self, digest: str) -> int | None:
        """Size in bytes of the archive with this digest, ``None`` if the bucket has none."""
        return self.size(archive_key(digest))

    def size(self, key: str) -> int | None:
        """Size in bytes of an object below the prefix, ``None`` if there is none.

        Raises:
            BucketMissing: there is not even the bucket.
        """
        try:
            with self._translated(f"look up {key}"):
                answer = self._client.head_object(Bucket=self.settings.bucket, Key=self.settings.prefix + key)
        except errors.ObjectMissing:
            self.ping()  # HEAD has no body to tell a missing bucket from a missing object
            return None
        return int(answer["ContentLength"])

    def manifest(self, model: str, digest: str) -> manifest.Manifest:
        """Read one manifest.

        Raises:
            ObjectMissing: there is none.
            ArchiveError: it cannot be understood, or was written by a newer Slipway.
        """
        key = manifest_key(model, digest)
        with self._translated(f"read {key}"):
            answer = self._client.get_object(Bucket=self.settings.bucket, Key=self.settings.prefix + key)
            body = answer["Body"].read()
        return parse_manifest(body, source=f"{key} in {self.where}")

    def digests(self, model: str) -> Iterator[str]:
        """Digests of the model's versions that the bucket holds, in no particular order."""
        prefix = f"{self.settings.prefix}manifests/{model}/"
        with self._translated(f"list manifests/{model}/"):
            pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self.settings.bucket, Prefix=prefix)
            for page in pages:
                for entry in page.get("Contents", ()):
                    yield str(entry["Key"]).removeprefix(prefix).removesuffix(".json")

    def _conditional(self) -> bool:
        found = self.check()
        if found.conditional_writes:
            return True
        if self.settings.allow_unconditional:
            logger.warning("%s has no conditional writes: publishing without", self.where)
            return False
        what = "PutObject" if not found.conditional_put else "CompleteMultipartUpload"
        raise errors.ConditionalWritesUnsupported(
            f"{self.where} does not honour If-None-Match on {what}, so two publishers could overwrite each other;"
            " use a store that does, or accept that with SLIPWAY_STORE_ALLOW_UNCONDITIONAL=1"
        )

    def _publish_archive(
        self, archive: Path, document: manifest.Manifest, *, conditional: bool, progress: parts.Progress | None
    ) -> None:
        key = archive_key(document.digest)
        for attempt in range(CONFLICT_RETRIES):
            if self._present(document):
                upload.abort_leftovers(self._client, bucket=self.settings.bucket, key=self.settings.prefix + key)
                if progress is not None:
                    progress(document.size_bytes, document.size_bytes)
                return
            if attempt:  # a conflicting write was neither refused nor finished: let it end
                threading.Event().wait(CONFLICT_RETRY_S)
            try:
                with self._translated(f"upload {key}"):
                    upload.upload(
                        self._client,
                        bucket=self.settings.bucket,
                        key=self.settings.prefix + key,
                        source=archive,
                        digest=document.digest,
                        part_bytes=self.settings.part_bytes,
                        workers=self.settings.workers,
                        conditional=conditional,
                        extra=self._encryption(),
                        progress=progress,
                    )
                return
            except upload.AlreadyThere:
                logger.info("another publisher has just written %s", key)
        if not self._present(document):
            raise errors.StoreUnreachable(f"{key} is being written by another publisher; repeat when it has ended")

    def _present(self, document: manifest.Manifest) -> bool:
        size = self.head(document.digest)
        if size is not None and size != document.size_bytes:
            raise self._truncated(document.digest, expected=document.size_bytes, found=size)
        return size is not None

    def _require_size(self, digest: str, size_bytes: int) -> None:
        size = self.head(digest)
        if size is None:
            raise errors.ObjectMissing(
                f"there is no archive {digest} in {self.where}; push the version again, or correct SLIPWAY_STORE"
            )
        if size != size_bytes:
            raise self._truncated(digest, expected=size_bytes, found=size)

    def _truncated(self, digest: str, *, expected: int, found: int) -> errors.ArchiveTruncated:
        return errors.ArchiveTruncated(
            f"{archive_key(digest)} in {self.where} has {found} bytes where {expected} are registered: the object is"
            " truncated or replaced and has not been used; remove it and push the version again"
        )

    def _put(self, key: str, body: bytes, *, conditional: bool) -> None:
        arguments = {"IfNoneMatch": "*"} if conditional else {}
        try:
            self._client.put_object(
                Bucket=self.settings.bucket,
                Key=self.settings.prefix + key,
                Body=body,
                ContentType="application/json",
                **arguments,
                **self._encryption(),
            )
        except botocore.exceptions.ClientError as error:
            if faults.is_precondition(error):
                raise upload.AlreadyThere(key) from error
            raise

    def _encryption(self) -> dict[str, str]:
        if self.settings.kms_key is None:
            return {}
        return {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": self.settings.kms_key}

    def _probe_put(self) -> bool:
        """Create the probe twice: the second try must lose. On a bucket that has the probe the first one does."""
        for _ in range(2):
            try:
                self._put(PROBE_KEY, b"1", conditional=True)
            except upload.AlreadyThere:
                return True
            except botocore.exceptions.ClientError as error:
                if _not_implemented(error):
                    return False
                raise
        return False

    def _probe_multipart(self) -> bool:
        """Complete a one-part upload onto the probe, which exists: that must lose."""
        target = {"Bucket": self.settings.bucket, "Key": self.settings.prefix + PROBE_KEY}
        upload_id = self._client.create_multipart_upload(**target, **self._encryption())["UploadId"]
        try:
            part = self._client.upload_part(**target, UploadId=upload_id, PartNumber=1, Body=b"1")
            self._client.complete_multipart_upload(
                **target,
                UploadId=upload_id,
                MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]},
                IfNoneMatch="*",
            )
        except botocore.exceptions.ClientError as error:
            self._client.abort_multipart_upload(**target, UploadId=upload_id)
            if faults.is_precondition(error):
                return True
            if _not_implemented(error):
                return False
            raise
        return False

    def _translated(self, doing: str) -> Any:
        return faults.translated(doing=doing, where=self.where)


def parse_manifest(body: bytes, *, source: str) -> manifest.Manifest:
    """Decode a manifest.

    Raises:
        ArchiveError: not JSON, not a manifest, or a schema newer than this Slipway's.
    """
    try:
        document = manifest.Manifest.model_validate_json(body)
    except pydantic.ValidationError as error:
        newer = _schema_version(body)
        if newer > manifest.SCHEMA_VERSION:
            raise errors.ArchiveError(
                f"{source} has schema version {newer} and this Slipway reads up to {manifest.SCHEMA_VERSION};"
                " upgrade Slipway here"
            ) from error
        raise errors.ArchiveError(f"{source} is not a manifest: {error}") from error
    if document.schema_version > manifest.SCHEMA_VERSION:
        raise errors.ArchiveError(
            f"{source} has schema version {document.schema_version} and this Slipway reads up to"
            f" {manifest.SCHEMA_VERSION}; upgrade Slipway here"
        )
    return document


def _schema_version(body: bytes) -> int:
    class Version(pydantic.BaseModel):
        schema_version: int = 0

    try:
        return Version.model_validate_json(body).schema_version
    except pydantic.ValidationError:
        return 0


def _not_implemented(error: botocore.exceptions.ClientError) -> bool:
    return faults.status(error) == 501 or faults.code(error) in ("NotImplemented", "InvalidArgument", "InvalidRequest")
