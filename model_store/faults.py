"""Turn what boto3, urllib3 and the file system raise into this package's errors.

Without this a refused key, a cut connection and a full disk would each reach the user as a traceback of a library.
"""

from __future__ import annotations

import contextlib
import errno
import shutil
from collections.abc import Generator
from pathlib import Path
from typing import Any

import botocore.exceptions
import urllib3.exceptions

from model_store import errors

CREDENTIAL_CODES = frozenset(
    {
        "403",
        "AccessDenied",
        "AllAccessDisabled",
        "ExpiredToken",
        "InvalidAccessKeyId",
        "InvalidToken",
        "KMS.AccessDeniedException",
        "RequestTimeTooSkewed",
        "SignatureDoesNotMatch",
        "TokenRefreshRequired",
    }
)
MISSING_CODES = frozenset({"404", "NoSuchKey", "NotFound"})
TIMEOUTS = (
    botocore.exceptions.ConnectTimeoutError,
    botocore.exceptions.ReadTimeoutError,
    urllib3.exceptions.TimeoutError,
    TimeoutError,
)
CUTS = (
    botocore.exceptions.ConnectionError,
    botocore.exceptions.HTTPClientError,
    botocore.exceptions.IncompleteReadError,
    botocore.exceptions.ResponseStreamingError,
    urllib3.exceptions.HTTPError,
    ConnectionError,
)
"""What a store that goes away looks like, timeouts included (HTTPClientError is their base)."""

NO_CREDENTIALS = (
    botocore.exceptions.NoCredentialsError,
    botocore.exceptions.PartialCredentialsError,
    botocore.exceptions.CredentialRetrievalError,
    botocore.exceptions.TokenRetrievalError,
    botocore.exceptions.UnauthorizedSSOTokenError,
)
FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


def code(error: botocore.exceptions.ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def status(error: botocore.exceptions.ClientError) -> int:
    response: Any = error.response
    return int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def is_missing(error: botocore.exceptions.ClientError) -> bool:
    return code(error) in MISSING_CODES


def is_precondition(error: botocore.exceptions.ClientError) -> bool:
    """The conditional write lost: something is there already, or is just being written (409)."""
    return status(error) == 412 or code(error) in ("PreconditionFailed", "ConditionalRequestConflict")


def is_retryable(error: Exception) -> bool:
    """Whether the same request can succeed a moment later."""
    if isinstance(error, botocore.exceptions.ClientError):
        return status(error) >= 500 or status(error) == 429 or code(error) in ("SlowDown", "RequestTimeout")
    return isinstance(error, (*TIMEOUTS, *CUTS)) and not isinstance(error, botocore.exceptions.SSLError)


def translate(error: Exception, *, doing: str, where: str) -> Exception:
    """The error of this package that says the same; an unknown error is returned unchanged.

    Args:
        doing: what was attempted, e.g. ``download archives/sha256/….mar``.
        where: the store, e.g. ``s3://bucket/ at http://127.0.0.1:8333``.
    """
    if isinstance(error, errors.ModelStoreError):
        return error
    if isinstance(error, botocore.exceptions.ClientError):
        return _translate_answer(error, doing=doing, where=where)
    if isinstance(error, NO_CREDENTIALS):
        return errors.CredentialsRefused(
            f"cannot {doing} in {where}: no usable credentials ({error}); set AWS_ACCESS_KEY_ID and"
            " AWS_SECRET_ACCESS_KEY, a profile, or a role for this machine"
        )
    if isinstance(error, botocore.exceptions.SSLError):
        return errors.StoreRefused(
            f"cannot {doing} in {where}: no trusted TLS connection ({error}); check the endpoint and AWS_CA_BUNDLE"
        )
    if isinstance(error, TIMEOUTS):
        return errors.StoreTimeout(
            f"cannot {doing} in {where}: the store did not answer in time ({error}); a repeated attempt resumes"
        )
    if isinstance(error, CUTS):
        return errors.StoreUnreachable(
            f"cannot {doing} in {where}: the connection failed ({error}); a repeated attempt resumes"
        )
    if isinstance(error, OSError) and error.errno in FULL:
        return errors.NoSpace(f"cannot {doing}: the disk is full ({error}); free some space, then repeat")
    if isinstance(error, botocore.exceptions.BotoCoreError):
        return errors.StoreRefused(f"cannot {doing} in {where}: {error}")
    return error


def _translate_answer(error: botocore.exceptions.ClientError, *, doing: str, where: str) -> errors.StoreError:
    said = f"{code(error)}: {error.response.get('Error', {}).get('Message', '')}".rstrip(": ")
    if code(error) == "NoSuchBucket":
        return errors.BucketMissing(f"cannot {doing}: no bucket behind {where}; create it or correct SLIPWAY_STORE")
    if code(error) in CREDENTIAL_CODES or status(error) in (401, 403):
        return errors.CredentialsRefused(
            f"cannot {doing} in {where}: the store refuses these credentials ({said}); check the keys, their"
            " expiry and their policy"
        )
    if is_missing(error):
        return errors.ObjectMissing(f"cannot {doing} in {where}: there is no such object")
    if is_retryable(error):
        return errors.StoreUnreachable(f"cannot {doing} in {where}: the store is failing ({said}); try again later")
    return errors.StoreRefused(f"cannot {doing} in {where}: {said} (HTTP {status(error)})")


@contextlib.contextmanager
def translated(*, doing: str, where: str) -> Generator[None]:
    """Raise this package's errors for whatever the block raises."""
    try:
        yield
    except Exception as error:
        better = translate(error, doing=doing, where=where)
        if better is error:
            raise
        raise better from error


def require_space(folder: Path, needed_bytes: int, *, doing: str) -> None:
    """Refuse early what the disk cannot take.

    Raises:
        NoSpace: fewer than ``needed_bytes`` are free below ``folder``.
    """
    free = shutil.disk_usage(folder).free
    if free < needed_bytes:
        raise errors.NoSpace(
            f"cannot {doing}: {needed_bytes} bytes are needed and {free} are free in {folder};"
            " free some space, then repeat"
        )
