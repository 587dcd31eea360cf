"""Bring one object to disk: many ranges at once, resumable, hashed on the way, moved into place only when proven.

The bytes go to ``<destination>.partial``; ``<destination>.partial.parts`` notes which parts are complete. After a cut
(of the network or of the process) the next call fetches only what is missing. The caller's thread hashes behind the
workers, part after part, out of the page cache: no second pass, and the parts of an earlier try are proven as well.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import threading
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

from model_store import errors, faults, parts

CHUNK_BYTES = 256 * 1024
"""Small enough to stay in a core's cache on its way from the socket to the file: 1 MiB costs a third more CPU."""

RUN_BYTES = 32 * 1024 * 1024
"""One request asks for this much where it can: a request costs some milliseconds of CPU on both sides."""

WAKE_S = 0.2
"""Longest pause between two calls of the progress callback."""

RESERVE_BYTES = 16 * 1024 * 1024
"""Left free on the disk beside the object itself."""


def partial_path(destination: Path) -> Path:
    return destination.with_name(destination.name + ".partial")


def journal_path(destination: Path) -> Path:
    return destination.with_name(destination.name + ".partial.parts")


def discard(destination: Path) -> None:
    """Forget what an interrupted download left behind."""
    partial_path(destination).unlink(missing_ok=True)
    journal_path(destination).unlink(missing_ok=True)


def download(
    client: Any,
    *,
    bucket: str,
    key: str,
    digest: str | None,
    size_bytes: int,
    destination: Path,
    part_bytes: int,
    workers: int,
    attempts: int,
    progress: parts.Progress | None = None,
) -> str:
    """Fetch ``key`` to ``destination`` and return the SHA-256 of what arrived.

    One caller per destination at a time (the cache holds a lock). ``destination`` appears only with all its bytes
    and, if ``digest`` is given, with that digest. Memory: a few chunks per worker.

    Raises:
        DigestMismatch: the bytes are not the registered ones, also when fetched again from the start.
        StoreError: the store failed for good; what has arrived stays and is resumed by the next call.
        NoSpace: the disk is full.
    """
    plan = parts.Plan.for_size(size_bytes, part_bytes=part_bytes)
    destination.parent.mkdir(parents=True, exist_ok=True)
    while True:
        run = _Run(
            client, bucket=bucket, key=key, plan=plan, destination=destination, workers=workers, attempts=attempts
        )
        found = run.execute(identity=digest or key, progress=progress)
        if digest is None or found == digest:
            journal_path(destination).unlink(missing_ok=True)
            partial_path(destination).replace(destination)
            return found
        discard(destination)
        if not run.resumed:  # else the fault may be in what an earlier try left: once more, from the start
            raise errors.DigestMismatch(
                f"{key} has SHA-256 {found} where {digest} is registered: the object in the bucket {bucket} was"
                " altered or damaged and has not been used; remove it and push the version again"
            )


class _Run:
    """One try: workers fetch parts, the caller's thread hashes what is contiguous."""

    def __init__(
        self, client: Any, *, bucket: str, key: str, plan: parts.Plan, destination: Path, workers: int, attempts: int
    ) -> None:
        self._client = client
        self._bucket = bucket
        self._key = key
        self._plan = plan
        self._destination = destination
        self._workers = workers
        self._attempts = attempts
        self._condition = threading.Condition()
        # Guarded by the condition:
        self._complete: set[int] = set()
        self._pending: Iterator[range] = iter(())
        self._received = 0
        self._failure: Exception | None = None
        self._stop = threading.Event()
        self.resumed = False

    def execute(self, *, identity: str, progress: parts.Progress | None) -> str:
        with self._files(identity) as (file, journal):
            self.resumed = bool(self._complete)
            self._received = sum(self._plan.length(index) for index in self._complete)
            runs = _runs(self._plan, self._complete, workers=self._workers)
            self._pending = iter(runs)
            faults.require_space(
                self._destination.parent,
                self._plan.size - self._received + RESERVE_BYTES,
                doing=f"download {self._key}",
            )
            threads = [
                threading.Thread(target=self._work, args=(file.fileno(), journal), name=f"download-{n}", daemon=True)
                for n in range(min(self._workers, len(runs)))
            ]
            for thread in threads:
                thread.start()
            try:
                return self._hash(file.fileno(), progress)
            finally:
                self._stop.set()
                for thread in threads:  # they write to our descriptors: never close those first
                    thread.join()

    @contextlib.contextmanager
    def _files(self, identity: str) -> Generator[tuple[io.FileIO, io.FileIO]]:
        """The partial file and its journal, continued if they belong to this very object and plan."""
        partial, journal = partial_path(self._destination), journal_path(self._destination)
        header = json.dumps({"object": identity, "size": self._plan.size, "part": self._plan.part_bytes})
        self._complete = _read_journal(journal, header, self._plan) if partial.exists() else set()
        if not self._complete:
            discard(self._destination)
            partial.touch(mode=0o600, exist_ok=False)
            journal.write_text(header + "\n")
        with partial.open("r+b", buffering=0) as file, journal.open("ab", buffering=0) as notes:
            file.truncate(self._plan.size)
            yield file, notes

    def _hash(self, descriptor: int, progress: parts.Progress | None) -> str:
        digest = hashlib.sha256()
        buffer = memoryview(bytearray(CHUNK_BYTES))
        for index in range(self._plan.count):
            self._await(index, progress)
            position, end = self._plan.span(index)
            while position < end:
                count = os.preadv(descriptor, [buffer[: end - position]], position)
                if count == 0:
                    raise errors.ModelStoreError(f"{self._destination} was cut short by another program")
                digest.update(buffer[:count])
                position += count
        if progress is not None:
            progress(self._plan.size, self._plan.size)
        return digest.hexdigest()

    def _await(self, index: int, progress: parts.Progress | None) -> None:
        while True:
            with self._condition:
                if self._failure is not None:
                    raise self._failure
                ready = index in self._complete
                received = self._received
                if not ready:
                    self._condition.wait(WAKE_S)
            if progress is not None:
                progress(received, self._plan.size)
            if ready:
                return

    def _work(self, descriptor: int, journal: io.FileIO) -> None:
        try:
            while not self._stop.is_set():
                with self._condition:
                    run = next(self._pending, None)
                if run is None or not self._fetch(descriptor, journal, run):
                    return
        except Exception as error:
            with self._condition:
                self._failure = self._failure or error
                self._condition.notify_all()
            self._stop.set()

    def _fetch(self, descriptor: int, journal: io.FileIO, run: range) -> bool:
        """Fetch parts that lie side by side; after a cut it goes on where the bytes ended. ``False``: told to stop.

        botocore has its own tries until an answer begins; these here are for bodies that break off.
        """
        position, end = self._plan.span(run[0])[0], self._plan.span(run[-1])[1]
        unfinished = iter(run)
        current = next(unfinished)
        failures = 0
        while position < end:
            before = position
            body = self._open(position, end)
            try:
                with contextlib.closing(body):
                    while chunk := body.read(CHUNK_BYTES):
                        _write(descriptor, chunk, position)
                        position += len(chunk)
                        with self._condition:
                            self._received += len(chunk)
                            while position >= self._plan.span(current)[1]:
                                journal.write(f"{current}\n".encode())
                                self._complete.add(current)
                                self._condition.notify_all()
                                if position == end:
                                    return True
                                current = next(unfinished)
                        if self._stop.is_set():
                            return False
            except Exception as error:
                failures = 1 if position > before else failures + 1
                if failures >= self._attempts or not faults.is_retryable(error):
                    raise
                if self._stop.wait(parts.backoff_s(failures)):
                    return False
        return True

    def _open(self, position: int, end: int) -> Any:
        answer = self._client.get_object(Bucket=self._bucket, Key=self._key, Range=f"bytes={position}-{end - 1}")
        if answer["ContentLength"] != end - position:
            answer["Body"].close()
            raise errors.ArchiveTruncated(
                f"{self._key}: asked for bytes {position} to {end - 1} and got {answer['ContentLength']} bytes;"
                " the object in the bucket is not the registered one: push the version again"
            )
        return answer["Body"]


def _runs(plan: parts.Plan, complete: set[int], *, workers: int) -> list[range]:
    """Missing parts as stretches of about :data:`RUN_BYTES`, shorter where the workers would go idle at the end."""
    missing = [index for index in range(plan.count) if index not in complete]
    longest = max(1, min(RUN_BYTES // plan.part_bytes, len(missing) // (2 * workers)))
    runs: list[range] = []
    for index in missing:
        last = runs[-1] if runs else range(0)
        if last and last.stop == index and len(last) < longest:
            runs[-1] = range(last.start, index + 1)
        else:
            runs.append(range(index, index + 1))
    return runs


def _write(descriptor: int, chunk: bytes, position: int) -> None:
    view = memoryview(chunk)
    while view:
        count = os.pwrite(descriptor, view, position)
        view = view[count:]
        position += count


def _read_journal(journal: Path, header: str, plan: parts.Plan) -> set[int]:
    """Parts that an earlier try completed; none if it fetched something else. A torn last line is ignored."""
    try:
        first, *lines = journal.read_text(errors="replace").split("\n")
    except FileNotFoundError:
        return set()
    if first != header:
        return set()
    return {int(line) for line in lines[:-1] if line.isascii() and line.isdigit() and int(line) < plan.count}
