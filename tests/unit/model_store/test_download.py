"""How the missing parts of a download are dealt out to workers."""

from __future__ import annotations

import hypothesis
from hypothesis import strategies

from model_store import download, parts


@hypothesis.given(
    count=strategies.integers(0, 200),
    complete=strategies.sets(strategies.integers(0, 199)),
    workers=strategies.integers(1, 8),
)
def test_runs_hold_each_missing_part_once_in_order_and_no_more_than_a_request_should(
    count: int, complete: set[int], workers: int
) -> None:
    plan = parts.Plan(size=count * 8 * 1024 * 1024, part_bytes=8 * 1024 * 1024)
    runs = download._runs(plan, complete, workers=workers)
    assert [index for run in runs for index in run] == [index for index in range(count) if index not in complete]
    assert all(0 < len(run) * plan.part_bytes <= download.RUN_BYTES for run in runs)


def test_few_parts_are_spread_over_the_workers() -> None:
    plan = parts.Plan(size=8 * 10, part_bytes=10)
    assert len(download._runs(plan, set(), workers=4)) == 8
