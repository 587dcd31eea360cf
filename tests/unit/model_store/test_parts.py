"""How objects are cut into parts."""

from __future__ import annotations

import hypothesis
from hypothesis import strategies

from model_store import parts, settings


@hypothesis.given(size=strategies.integers(0, 10**13), part=strategies.integers(settings.MIN_PART_BYTES, 10**9))
def test_parts_cover_every_size_without_gap_and_stay_within_what_s3_takes(size: int, part: int) -> None:
    plan = parts.Plan.for_size(size, part_bytes=part)
    assert plan.count <= parts.MAX_PARTS
    assert plan.part_bytes >= settings.MIN_PART_BYTES
    if plan.count == 0:
        assert size == 0
        return
    assert plan.span(0)[0] == 0
    assert plan.span(plan.count - 1)[1] == size
    middle = plan.count // 2
    assert middle == 0 or plan.span(middle)[0] == plan.span(middle - 1)[1]
    assert 0 < plan.length(plan.count - 1) <= plan.part_bytes


def test_back_off_grows_and_stays_bounded() -> None:
    waits = [parts.backoff_s(failures) for failures in range(1, 12)]
    assert waits == sorted(waits)
    assert (waits[0], waits[-1]) == (parts.BACKOFF_FIRST_S, parts.BACKOFF_MAX_S)
