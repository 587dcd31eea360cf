from __future__ import annotations

import pytest

from bench import harness


def comparison(**given: object) -> harness.Comparison:
    fields = {"name": "rate", "unit": "req/s", "ours": [1.0], "baseline": [1.0], "baseline_name": "stock"} | given
    return harness.Comparison(**fields)  # type: ignore[arg-type]


def test_the_ratio_is_taken_within_rounds_so_that_a_slow_round_of_both_sides_changes_nothing() -> None:
    # The medians alone would say 100/100; in every single round ours is twice as fast.
    figure = comparison(ours=[200.0, 20.0, 100.0], baseline=[100.0, 10.0, 50.0])
    assert figure.ratio == 2.0


def test_a_ratio_of_times_is_turned_over_so_that_more_is_better() -> None:
    assert comparison(ours=[5.0], baseline=[10.0], higher_is_better=False).ratio == 2.0


@pytest.mark.parametrize(("goal", "reached"), [(None, None), (0.9, True), (1.1, False)])
def test_a_comparison_is_judged_by_its_goal_if_it_has_one(goal: float | None, reached: bool | None) -> None:
    assert comparison(goal=goal).reached is reached


def test_a_limit_holds_for_every_round() -> None:
    assert harness.Reading(name="time", unit="s", values=[0.1, 0.9], limit=1).reached is True
    assert harness.Reading(name="time", unit="s", values=[0.1, 0.1, 1.1], limit=1).reached is False


def test_sides_take_turns() -> None:
    order: list[str] = []

    def side(name: str, value: float) -> float:
        order.append(name)
        return value

    measured = harness.take_turns(2, lambda: side("a", 1.0), lambda: side("b", 2.0))
    assert order == ["a", "b", "a", "b"]
    assert measured == [[1.0, 1.0], [2.0, 2.0]]
