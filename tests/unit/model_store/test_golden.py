from __future__ import annotations

from typing import Any

import pytest

from model_store import golden


@pytest.mark.parametrize(
    ("expected", "actual"),
    [
        ([{"label": "3", "score": 0.99}], [{"label": "3", "score": 0.9905}]),
        (1, 1.0),
        (1000.0, 1000.9),
        ({"a": None, "b": True, "c": "x"}, {"c": "x", "b": True, "a": None}),
        (float("nan"), float("nan")),
        ([], []),
    ],
)
def test_the_same_structure_with_numbers_within_the_tolerance_agrees(expected: Any, actual: Any) -> None:
    assert golden.compare(expected, actual, 1e-3) == []


@pytest.mark.parametrize(
    ("expected", "actual", "path"),
    [
        ([{"score": 0.9}], [{"score": 0.8}], "$[0].score"),
        ({"a": 1}, {"b": 1}, "$.a: missing"),
        ({"a": 1}, {"a": 1, "b": 1}, "$.b: not expected"),
        ([1, 2], [1], "expected 2 elements, got 1"),
        ("3", 3, "expected '3', got 3"),
        (1, True, "expected 1, got True"),
        (None, "", "expected None"),
        (0.5, float("nan"), "got nan"),
        (0.5, float("inf"), "got inf"),
        ([1], {"0": 1}, "$"),
    ],
)
def test_a_difference_is_told_with_its_path(expected: Any, actual: Any, path: str) -> None:
    differences = golden.compare(expected, actual, 1e-3)
    assert path in "; ".join(differences)


def test_a_wholly_different_answer_is_told_in_few_lines() -> None:
    differences = golden.compare([0.0] * 384, [1.0] * 384, 1e-3)
    assert len(differences) == golden.MAX_DIFFERENCES + 1
    assert "374 more" in differences[-1]


def test_a_tolerance_is_relative_above_one_and_absolute_below() -> None:
    assert golden.compare(0.0001, 0.0009, 1e-3) == []
    assert golden.compare(10_000.0, 10_005.0, 1e-3) == []
    assert golden.compare(10_000.0, 10_020.0, 1e-3)
