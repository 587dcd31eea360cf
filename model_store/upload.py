"""Bring one file into the bucket: many parts at once, resumable, hashed on the way, completed only if nobody was first.

The caller's thread reads and hashes the file once, in order, and hands each part to a worker; the object comes into
being only after the digest of what was read proved right, by a conditional completion. A cut upload stays in the
bucket as an unfinished multipart upload: the next publisher of the same key finds it by listing, on any machine,
and sends only the parts that are missing or differ.
"""

from __future__ import annotations

import concurrent.futures
import hashlib
import logging
import threading
from pathlib import Path
from typing import Any

import botocore.exceptions

from model_store import errors, faults, parts

logger = logging.getLogger(__name__)

RESTARTS = 3
"""How often an upload that was aborted under our feet (by another publisher or a lifecycle rule) is begun again."""


class AlreadyThere(Exception):
    """The conditional write lost: the key holds an object."""


def upload(
    client: Any,
    *,
    bucket: str,
    key: str,
    source: Path,
    digest: str,
    part_bytes: int,
    workers: int,
    conditional: bool = True,
    extra: dict[str, str] | None = None,
    progress: parts.Progress | None = None,
) -> None:
    """Create ``key`` from ``source``.

    Args:
        extra: further arguments of PutObject and CreateMultipartUpload (encryption).
        conditional: send ``If-None-Match: *``.

    Memory: ``workers + 1`` parts.

    Raises:
        AlreadyThere: the key holds an object already, or got one meanwhile.
        DigestMismatch: the file is not what ``digest`` says; nothing was created.
        botocore's own errors: see :mod:`model_store.faults`.
    """
    plan = parts.Plan.for_size(source.stat().st_size, part_bytes=part_bytes)
    condition = {"IfNoneMatch": "*"} if conditional else {}
    if plan.count <= 1:
        body = source.read_bytes()
        _require(digest, hashlib.sha256(body).hexdigest(), source)
        _conditionally(client.put_object, Bucket=bucket, Key=key, Body=body, **condition, **(extra or {}))
        if progress is not None:
            progress(plan.size, plan.size)
        return
    for restart in range(RESTARTS):
        run = _Run(client, bucket=bucket, key=key, plan=plan, workers=workers)
        try:
            run.execute(source, digest=digest, condition=condition, extra=extra or {}, progress=progress)
        except botocore.exceptions.ClientError as error:
            if faults.code(error) not in ("NoSuchUpload", "InvalidPart") or restart == RESTARTS - 1:
                raise
            if _exists(client, bucket, key):
                raise AlreadyThere(key) from error
            logger.info("the unfinished upload of %s is gone; beginning again", key)
        else:
            return


def abort_leftovers(client: Any, *, bucket: str, key: str) -> None:
    """Remove unfinished uploads of ``key``, whose parts cost money for nothing. Best effort."""
    try:
        for upload_id in _unfinished(client, bucket, key):
            client.abort_multipart_upload(Bucket=bucket, Key=key, UploadId=upload_id)
    except botocore.exceptions.ClientError as error:
        logger.info("could not remove unfinished uploads of %s: %s", key, error)


class _Run:
    """One multipart upload, begun or continued."""

    def __init__(self, client: Any, *, bucket: str, key: str, plan: parts.Plan, workers: int) -> None:
        self._client = client
        self._bucket = bucket
        self._key = key
        self._plan = plan
        self._workers = workers
        self._slots = threading.Semaphore(workers)
        self._failed = threading.Event()
        self._lock = threading.Lock()
        self._sent = 0  # guarded by the lock

    def execute(
        self,
        source: Path,
        *,
        digest: str,
        condition: dict[str, str],
        extra: dict[str, str],
        progress: parts.Progress | None,
    ) -> None:
        upload_id, known = self._continue()
        if upload_id is None:
            created = self._client.create_multipart_upload(Bucket=self._bucket, Key=self._key, **extra)
            upload_id = str(created["UploadId"])
        etags = self._send_all(source, upload_id, known=known, digest=digest, progress=progress)
        target = {"Bucket": self._bucket, "Key": self._key, "UploadId": upload_id}
        listed = [{"PartNumber": index + 1, "ETag": etag} for index, etag in enumerate(etags)]
        try:
            _conditionally(
                self._client.complete_multipart_upload, **target, MultipartUpload={"Parts": listed}, **condition
            )
        except AlreadyThere:
            abort_leftovers(self._client, bucket=self._bucket, key=self._key)
            raise

    def _continue(self) -> tuple[str | None, dict[int, tuple[int, str]]]:
        """The newest unfinished upload of the key and its parts: index → (size, ETag)."""
        try:
            upload_id = next(iter(_unfinished(self._client, self._bucket, self._key)), None)
            if upload_id is None:
                return None, {}
            pages = self._client.get_paginator("list_parts").paginate(
                Bucket=self._bucket, Key=self._key, UploadId=upload_id
            )
            known = {
                int(part["PartNumber"]) - 1: (int(part["Size"]), str(part["ETag"]).strip('"'))
                for page in pages
                for part in page.get("Parts", ())
            }
        except botocore.exceptions.ClientError as error:
            # A publisher may lack the right to list, and a store the operation: then there is nothing to resume.
            logger.info("cannot look for an unfinished upload of %s: %s", self._key, error)
            return None, {}
        return upload_id, known

    def _send_all(
        self,
        source: Path,
        upload_id: str,
        *,
        known: dict[int, tuple[int, str]],
        digest: str,
        progress: parts.Progress | None,
    ) -> list[str]:
        """Read and hash every part, send those that the bucket lacks; the ETags in order."""
        hasher = hashlib.sha256()
        results: list[concurrent.futures.Future[str] | str] = []
        with (
            source.open("rb", buffering=0) as file,
            concurrent.futures.ThreadPoolExecutor(self._workers, thread_name_prefix="upload") as pool,
        ):
            try:
                for index in range(self._plan.count):
                    self._slots.acquire()
                    if self._failed.is_set():
                        break
                    body = file.read(self._plan.length(index))
                    hasher.update(body)
                    if _same(body, known.get(index)):
                        self._slots.release()
                        self._count(len(body))
                        results.append(known[index][1])
                    else:
                        results.append(pool.submit(self._send, index, body, upload_id))
                    del body
                    self._tell(progress)
                etags = [each if isinstance(each, str) else self._result(each, progress) for each in results]
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        try:
            _require(digest, hasher.hexdigest(), source)
        except errors.DigestMismatch:
            abort_leftovers(self._client, bucket=self._bucket, key=self._key)
            raise
        return etags

    def _send(self, index: int, body: bytes, upload_id: str) -> str:
        try:
            answer = self._client.upload_part(
                Bucket=self._bucket, Key=self._key, UploadId=upload_id, PartNumber=index + 1, Body=body
            )
        except BaseException:
            self._failed.set()
            raise
        finally:
            self._slots.release()
        self._count(len(body))
        return str(answer["ETag"])

    def _result(self, future: concurrent.futures.Future[str], progress: parts.Progress | None) -> str:
        etag = future.result()
        self._tell(progress)
        return etag

    def _count(self, sent: int) -> None:
        with self._lock:
            self._sent += sent

    def _tell(self, progress: parts.Progress | None) -> None:
        if progress is not None:
            with self._lock:
                sent = self._sent
            progress(sent, self._plan.size)


def _same(body: bytes, known: tuple[int, str] | None) -> bool:
    """Whether a part in the bucket is this one. Its ETag is the MD5 unless the store encrypts: then it is resent."""
    if known is None or known[0] != len(body):
        return False
    return hashlib.md5(body, usedforsecurity=False).hexdigest() == known[1]


def _unfinished(client: Any, bucket: str, key: str) -> list[str]:
    """Ids of the key's unfinished uploads, the newest first."""
    pages = client.get_paginator("list_multipart_uploads").paginate(Bucket=bucket, Prefix=key)
    found = [entry for page in pages for entry in page.get("Uploads", ()) if entry["Key"] == key]
    found.sort(key=lambda entry: entry["Initiated"], reverse=True)
    return [str(entry["UploadId"]) for entry in found]


def _conditionally(operation: Any, **arguments: Any) -> None:
    try:
        operation(**arguments)
    except botocore.exceptions.ClientError as error:
        if faults.is_precondition(error):
            raise AlreadyThere(arguments["Key"]) from error
        raise


def _exists(client: Any, bucket: str, key: str) -> bool:
    try:
        client.head_object(Bucket=bucket, Key=key)
    except botocore.exceptions.ClientError as error:
        if faults.is_missing(error):
            return False
        raise
    return True


def _require(expected: str, found: str, source: Path) -> None:
    if expected != found:
        raise errors.DigestMismatch(
            f"{source} has SHA-256 {found} where its manifest says {expected}: it changed since it was packed;"
            " pack and push again"
        )
