"""What can go wrong in the rules themselves.

Every error has a ``kind`` (a stable word that programs may compare) and extras (facts beside the sentence, such as the
id of the rollout that stands in the way). How they look over HTTP is the business of ``serving.api.problems``.
"""

from __future__ import annotations

from typing import Any, ClassVar


class DomainError(Exception):
    """Base of all: a sentence that says what was wrong, what was expected, and what to do next."""

    kind: ClassVar[str] = "error"

    def __init__(self, detail: str, *, kind: str | None = None, **extras: Any) -> None:
        super().__init__(detail)
        self.detail = detail
        self.reason_kind = kind or self.kind
        self.extras = extras


class NotFound(DomainError):
    """A named thing does not exist."""

    kind = "not-found"


class Conflict(DomainError):
    """The request is well formed, but not possible in the present state."""

    kind = "conflict"


class Invalid(DomainError):
    """The request can never succeed as it is."""

    kind = "invalid"


class Unavailable(DomainError):
    """Something that the answer depends on is away for now; the same request may succeed later."""

    kind = "unavailable"

    def __init__(self, detail: str, *, kind: str | None = None, retry_after_s: int = 2, **extras: Any) -> None:
        super().__init__(detail, kind=kind, **extras)
        self.retry_after_s = retry_after_s
