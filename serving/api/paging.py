"""Pages of lists: ``limit`` and an opaque ``cursor`` go in, ``items`` and the ``next`` page's address come out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Generic, TypeVar

import fastapi
from pydantic import BaseModel, Field

from serving.domain import errors

MAX_LIMIT = 500
DEFAULT_LIMIT = 100

T = TypeVar("T")
Row = TypeVar("Row")

Limit = Annotated[int, fastapi.Query(ge=1, le=MAX_LIMIT, description="most items in the answer")]
Cursor = Annotated[
    str | None, fastapi.Query(min_length=1, max_length=300, description="as found in the previous page's next")
]


class Page(BaseModel, Generic[T]):
    items: list[T]
    next: str | None = Field(default=None, description="address of the next page; null on the last")


def page(
    request: fastapi.Request,
    rows: Sequence[Row],
    *,
    limit: int,
    shape: Callable[[Row], T],
    key: Callable[[Row], str | int],
) -> Page[T]:
    """Shape up to ``limit`` rows of a query that asked for ``limit + 1``."""
    kept = rows[:limit]
    following = None
    if len(rows) > limit:
        url = request.url.include_query_params(limit=limit, cursor=str(key(kept[-1])))
        following = f"{url.path}?{url.query}"
    return Page[T](items=[shape(row) for row in kept], next=following)


def number(cursor: str | None) -> int | None:
    """A cursor that stands for a number. Raises errors.Invalid."""
    if cursor is None:
        return None
    if not cursor.isascii() or not cursor.isdigit() or len(cursor) > 18:
        raise errors.Invalid(
            f'cursor "{cursor}" is none of ours; take it from the previous page\'s "next"', kind="bad-cursor"
        )
    return int(cursor)
