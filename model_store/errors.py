"""Everything that can go wrong between a model.yaml, an archive, a bucket and a cache, under one base class.

``transient`` says whether trying again later, with nothing changed, can help: an agent retries such errors and
reports the others at once. ``kind`` is a stable name for problem documents and for scripts.
"""

from __future__ import annotations

from pathlib import Path


class ModelStoreError(Exception):
    """Base of this package's errors; the message says what was wrong, what was expected, and what to do."""

    kind = "model_store"
    transient = False


class SettingsError(ModelStoreError):
    """The store's settings are missing or contradict themselves."""

    kind = "store_settings"


class SpecError(ModelStoreError):
    """A model.yaml or seed config says something that cannot be packed."""

    kind = "spec"

    def __init__(self, *, file: Path, field: str, problem: str, fix: str = "") -> None:
        super().__init__(f"{file}: {field + ': ' if field else ''}{problem}{'; ' + fix if fix else ''}")
        self.file = file
        self.field = field
        self.problem = problem
        self.fix = fix


class ArchiveError(ModelStoreError):
    """An archive is damaged, or was not written by ``slipway push`` or torch-model-archiver."""

    kind = "archive"


class UnsafeArchive(ArchiveError):
    """An archive would write outside its folder, or more than its manifest allows."""

    kind = "unsafe_archive"


class UnsafeWeights(ArchiveError):
    """Weights need code from their pickle to load: ``weights_only=True`` would refuse them."""

    kind = "unsafe_weights"


class StoreError(ModelStoreError):
    """The bucket could not do what was asked."""

    kind = "store"


class CredentialsRefused(StoreError):
    """No credentials were found, or the store does not accept them for this action."""

    kind = "store_credentials"


class BucketMissing(StoreError):
    kind = "store_bucket_missing"


class ObjectMissing(StoreError):
    """The bucket is there, the object is not."""

    kind = "store_object_missing"


class StoreRefused(StoreError):
    """The store answered with an error that has no class of its own."""

    kind = "store_refused"


class StoreTimeout(StoreError):
    kind = "store_timeout"
    transient = True


class StoreUnreachable(StoreError):
    """No connection, a connection that was cut, or a 5xx answer, after all retries."""

    kind = "store_unreachable"
    transient = True


class ConditionalWritesUnsupported(StoreError):
    """The store ignores or refuses ``If-None-Match``: two publishers could overwrite each other."""

    kind = "store_conditional_writes"


class ArchiveTruncated(StoreError):
    """The object's size is not the registered one."""

    kind = "archive_truncated"


class DigestMismatch(StoreError):
    """The bytes are not the ones that were registered."""

    kind = "digest_mismatch"


class NoSpace(ModelStoreError):
    """The disk is full, or would be."""

    kind = "no_space"


class CacheTooSmall(ModelStoreError):
    """The cache's limit cannot hold the archive beside what is in use."""

    kind = "cache_too_small"
