"""Errors as a person sees them: one line, and an exit code that scripts can use (docs/cli.md)."""

from __future__ import annotations

import grpc
import httpx

from model_store import errors as store_errors
from serving.local import errors as local_errors

FAILED = 1
USAGE = 2
NOT_FOUND = 3
CONFLICT = 4
UNAVAILABLE = 5


class CliError(Exception):
    """Base of this package's errors.

    Attributes:
        details: further lines, such as a worker's traceback or the end of a log.
    """

    exit_code = FAILED

    def __init__(self, message: str, *, details: str = "") -> None:
        super().__init__(message)
        self.details = details


class Usage(CliError):
    """What was asked for can never work as it is."""

    exit_code = USAGE


class NotFound(CliError):
    exit_code = NOT_FOUND


class Conflict(CliError):
    """It could work at another time."""

    exit_code = CONFLICT


class Unavailable(CliError):
    """Something does not answer, or not in time."""

    exit_code = UNAVAILABLE


def for_status(status: int) -> type[CliError]:
    """The class of error for an HTTP status."""
    match status:
        case 404:
            return NotFound
        case 409:
            return Conflict
        case 429 | 502 | 503 | 504:
            return Unavailable
        case _ if 400 <= status < 500:
            return Usage
        case _:
            return CliError


def for_grpc(code: grpc.StatusCode) -> type[CliError]:
    """The class of error for a gRPC status: the same one as over REST."""
    status = {
        grpc.StatusCode.INVALID_ARGUMENT: 400,
        grpc.StatusCode.UNIMPLEMENTED: 405,
        grpc.StatusCode.NOT_FOUND: 404,
        grpc.StatusCode.RESOURCE_EXHAUSTED: 429,
        grpc.StatusCode.UNAVAILABLE: 503,
        grpc.StatusCode.DEADLINE_EXCEEDED: 504,
    }
    return for_status(status.get(code, 500))


def known(error: BaseException) -> CliError | None:
    """What a person is told of an error of any package; ``None`` for a fault of ours."""
    match error:
        case CliError():
            return error
        case local_errors.PartFailed():
            return CliError(str(error), details="\n".join(error.log_tail))
        case local_errors.AlreadyRunning() | local_errors.PortTaken():
            return Conflict(str(error))
        case local_errors.NotRunning() | local_errors.NotAnswering():
            return Unavailable(str(error))
        case store_errors.SpecError() | store_errors.SettingsError() | store_errors.UnsafeWeights():
            return Usage(str(error))
        case store_errors.ModelStoreError() if error.transient:
            return Unavailable(str(error))
        case local_errors.LocalError() | store_errors.ModelStoreError():
            return CliError(str(error))
        case httpx.HTTPError():
            return Unavailable(str(error) or type(error).__name__)
        case _:
            return None
