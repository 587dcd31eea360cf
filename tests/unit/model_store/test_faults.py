"""What a store or a disk raises, in our words."""

from __future__ import annotations

import errno
from typing import Any

import botocore.exceptions
import pytest
import urllib3.exceptions

from model_store import errors, faults


def answer(status: int, code: str, message: str = "said the store") -> botocore.exceptions.ClientError:
    response: Any = {"Error": {"Code": code, "Message": message}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return botocore.exceptions.ClientError(response, "GetObject")


@pytest.mark.parametrize(
    ("error", "kind", "transient"),
    [
        (answer(403, "InvalidAccessKeyId"), errors.CredentialsRefused, False),
        (answer(403, "403"), errors.CredentialsRefused, False),
        (answer(400, "ExpiredToken"), errors.CredentialsRefused, False),
        (botocore.exceptions.NoCredentialsError(), errors.CredentialsRefused, False),
        (answer(404, "NoSuchBucket"), errors.BucketMissing, False),
        (answer(404, "404"), errors.ObjectMissing, False),
        (answer(503, "SlowDown"), errors.StoreUnreachable, True),
        (answer(500, "InternalError"), errors.StoreUnreachable, True),
        (answer(400, "InvalidArgument"), errors.StoreRefused, False),
        (botocore.exceptions.ConnectTimeoutError(endpoint_url="x"), errors.StoreTimeout, True),
        (botocore.exceptions.ReadTimeoutError(endpoint_url="x"), errors.StoreTimeout, True),
        (urllib3.exceptions.ReadTimeoutError(None, "x", "slow"), errors.StoreTimeout, True),  # type: ignore[arg-type]
        (botocore.exceptions.EndpointConnectionError(endpoint_url="x"), errors.StoreUnreachable, True),
        (botocore.exceptions.ConnectionClosedError(endpoint_url="x"), errors.StoreUnreachable, True),
        (botocore.exceptions.IncompleteReadError(actual_bytes=1, expected_bytes=2), errors.StoreUnreachable, True),
        (urllib3.exceptions.ProtocolError("cut"), errors.StoreUnreachable, True),
        (ConnectionResetError(errno.ECONNRESET, "reset"), errors.StoreUnreachable, True),
        (botocore.exceptions.SSLError(endpoint_url="x", error="self-signed"), errors.StoreRefused, False),
        (botocore.exceptions.ProfileNotFound(profile="x"), errors.StoreRefused, False),
        (OSError(errno.ENOSPC, "full"), errors.NoSpace, False),
        (OSError(errno.EDQUOT, "quota"), errors.NoSpace, False),
    ],
)
def test_each_failure_has_its_class_names_the_work_and_says_if_waiting_helps(
    error: Exception, kind: type[errors.ModelStoreError], transient: bool
) -> None:
    found = faults.translate(error, doing="download a.mar", where="s3://bucket/")
    assert type(found) is kind
    assert isinstance(found, errors.ModelStoreError)
    assert found.transient is transient
    assert "download a.mar" in str(found)
    assert faults.is_retryable(error) is transient


def test_an_error_of_ours_or_an_unknown_one_passes_unchanged() -> None:
    for error in (errors.DigestMismatch("x"), ZeroDivisionError(), PermissionError(errno.EACCES, "x")):
        assert faults.translate(error, doing="x", where="y") is error


@pytest.mark.parametrize(
    ("error", "lost"),
    [
        (answer(412, "PreconditionFailed"), True),
        (answer(412, "412"), True),
        (answer(409, "ConditionalRequestConflict"), True),
        (answer(409, "BucketAlreadyExists"), False),
        (answer(403, "AccessDenied"), False),
    ],
)
def test_a_lost_conditional_write_is_recognized(error: botocore.exceptions.ClientError, lost: bool) -> None:
    assert faults.is_precondition(error) is lost
