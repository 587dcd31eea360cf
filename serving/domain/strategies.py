"""How a rollout moves traffic: the seam at which canary and shadow join all-at-once.

A strategy decides what a stage's weights are while its rollout shifts. The state machine around it, with its waiting,
timeouts and ways back, is the same for all (``rollouts``).
"""

from __future__ import annotations

from enum import StrEnum
from typing import assert_never

from serving.domain import stages, wire

FULL_WEIGHT = 10_000


class Strategy(StrEnum):
    ALL_AT_ONCE = "all-at-once"


def weights(strategy: Strategy, *, to_version: int, stage: stages.Stage) -> list[wire.WeightedVersion]:
    """Weights of a stage while a rollout into it shifts; they sum to 10,000."""
    del stage  # a canary keeps part of the traffic on ``stage.stable``
    match strategy:
        case Strategy.ALL_AT_ONCE:
            return [wire.WeightedVersion(version=to_version, weight=FULL_WEIGHT)]
        case _:  # pyright: ignore[reportUnnecessaryComparison]
            assert_never(strategy)


def settled(stage: stages.Stage) -> list[wire.WeightedVersion]:
    """Weights of a stage that nothing is shifting."""
    if stage.stable is None:
        return []
    return [wire.WeightedVersion(version=stage.stable, weight=FULL_WEIGHT)]
