"""Comparing what a replica answers to a golden input with what the publisher's machine answered.

Structure and text must be the same; numbers may differ a little, as they do between processors and libraries.
"""

from __future__ import annotations

import math
from typing import Any

MAX_DIFFERENCES = 10
"""So many are told; a model that answers something else altogether differs everywhere."""

MAX_VALUE_CHARACTERS = 80


def compare(expected: Any, actual: Any, tolerance: float) -> list[str]:
    """Tell where two JSON documents differ.

    Args:
        expected: the decoded answer that was stored with the version.
        actual: the decoded answer to judge.
        tolerance: numbers ``a`` (actual) and ``b`` (expected) agree when ``|a - b| <= tolerance * max(1, |b|)``.

    Returns:
        One sentence for each difference, with its path (``$[0].score``); at most :data:`MAX_DIFFERENCES`, and then a
        line that says how many more. Empty when the documents agree.
    """
    differences: list[str] = []
    _walk(expected, actual, tolerance, "$", differences)
    if len(differences) > MAX_DIFFERENCES:
        more = len(differences) - MAX_DIFFERENCES
        return [*differences[:MAX_DIFFERENCES], f"… and {more} more differences"]
    return differences


def _walk(expected: Any, actual: Any, tolerance: float, path: str, found: list[str]) -> None:
    if _is_number(expected) and _is_number(actual):
        if not _close(float(expected), float(actual), tolerance):
            found.append(f"{path}: expected {expected}, got {actual} (tolerance {tolerance:g})")
    elif isinstance(expected, dict) and isinstance(actual, dict):
        for key in expected:
            if key not in actual:
                found.append(f"{path}.{key}: missing")
            else:
                _walk(expected[key], actual[key], tolerance, f"{path}.{key}", found)
        found.extend(f"{path}.{key}: not expected" for key in actual if key not in expected)
    elif isinstance(expected, list) and isinstance(actual, list):
        if len(expected) != len(actual):
            found.append(f"{path}: expected {len(expected)} elements, got {len(actual)}")
            return
        for index, (wanted, got) in enumerate(zip(expected, actual, strict=True)):
            _walk(wanted, got, tolerance, f"{path}[{index}]", found)
    elif type(expected) is not type(actual) or expected != actual:
        found.append(f"{path}: expected {_shown(expected)}, got {_shown(actual)}")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _close(expected: float, actual: float, tolerance: float) -> bool:
    if not (math.isfinite(expected) and math.isfinite(actual)):
        return expected == actual or (math.isnan(expected) and math.isnan(actual))
    return abs(actual - expected) <= tolerance * max(1.0, abs(expected))


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= MAX_VALUE_CHARACTERS else f"{text[:MAX_VALUE_CHARACTERS]}…"
