"""What a benchmark returns, and how figures of rounds become one line of a table."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One quantity, ours beside a baseline's, one number for each round of both.

    Attributes:
        goal: the least ratio ours/baseline to reach; ``None`` where the comparison only informs.
        higher_is_better: else the ratio is turned over, so that more than one is always better.
    """

    name: str
    unit: str
    ours: Sequence[float]
    baseline: Sequence[float]
    baseline_name: str
    goal: float | None = None
    higher_is_better: bool = True

    @property
    def ratio(self) -> float:
        """Median over rounds of the ratio within a round: neighbours in time share what else the machine does."""
        pairs = zip(self.ours, self.baseline, strict=True)
        return statistics.median(a / b if self.higher_is_better else b / a for a, b in pairs)

    @property
    def reached(self) -> bool | None:
        return None if self.goal is None else self.ratio >= self.goal

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "unit": self.unit,
            "ours": list(self.ours),
            "baseline": list(self.baseline),
            "baseline_name": self.baseline_name,
            "ratio": self.ratio,
            "goal_ratio": self.goal,
            "reached": self.reached,
        }


@dataclass(frozen=True, kw_only=True)
class Reading:
    """One quantity of ours, held against a limit.

    Attributes:
        limit: the most that any round may show; ``None`` where the reading only informs.
    """

    name: str
    unit: str
    values: Sequence[float]
    limit: float | None = None

    @property
    def reached(self) -> bool | None:
        return None if self.limit is None else max(self.values) <= self.limit

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "unit": self.unit,
            "values": list(self.values),
            "limit": self.limit,
            "reached": self.reached,
        }


@dataclass(frozen=True, kw_only=True)
class Report:
    """One benchmark's outcome."""

    title: str
    figures: Sequence[Comparison | Reading]
    notes: Sequence[str] = ()

    def as_json(self) -> dict[str, Any]:
        return {
            "title": self.title,
            "figures": [figure.as_json() for figure in self.figures],
            "notes": list(self.notes),
        }


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a benchmark is told.

    Attributes:
        rounds: how often both sides take their turn; ``None`` is the benchmark's own choice.
        work: an empty folder for everything it writes.
        say: tells a person what happens now.
    """

    work: Path
    rounds: int | None = None
    say: Callable[[str], None] = field(default=lambda _: None)


def take_turns(rounds: int, *sides: Callable[[], float]) -> list[list[float]]:
    """Measure every side once a round, in the same order; one list for each side."""
    measured: list[list[float]] = [[] for _ in sides]
    for _ in range(rounds):
        for side, values in zip(sides, measured, strict=True):
            values.append(side())
    return measured
