"""What the database layer raises; everything else that SQLAlchemy raises is a fault of ours."""

from __future__ import annotations

from serving.domain import errors


class DatabaseUnavailable(errors.Unavailable):
    """The database is locked, gone, or out of connections: nothing was changed, and the same call may succeed later."""

    kind = "database-unavailable"


class MigrationFailed(errors.DomainError):
    """The schema could not be brought to the version that this code needs."""

    kind = "migration-failed"
