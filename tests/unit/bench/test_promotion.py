from __future__ import annotations

from pathlib import Path

import pytest

from bench import harness, promotion, traffic


def move(**given: float) -> promotion.Move:
    fields = {"old": 1, "new": 2, "asked_at": 10.0, "done_at": 12.0, "next_at": 14.0, "shift_s": 0.5} | given
    return promotion.Move(**fields)  # type: ignore[arg-type]


@pytest.fixture
def rest() -> traffic.Traffic:
    account = traffic.Traffic("rest", gateway="http://127.0.0.1:1", model="digits", file=Path("3.png"), rate=100)
    account.answers = [
        traffic.Answer(9.0, 9.1, version="1"),
        traffic.Answer(11.0, 11.1, version="2"),
        traffic.Answer(11.2, 11.4, version="1"),
        traffic.Answer(13.0, 13.1, version="2"),
    ]
    return account


def figures(rest: traffic.Traffic) -> dict[str, harness.Comparison | harness.Reading]:
    back = move(old=2, new=1, asked_at=14.0, done_at=14.5, next_at=16.0)
    return {figure.name: figure for figure in promotion._report([move()], [back], (rest,)).figures}


def test_an_answer_of_the_old_version_after_done_misses_the_goal(rest: traffic.Traffic) -> None:
    name = "answers of the old version after done"
    assert figures(rest)[name].reached is True
    rest.answers.append(traffic.Answer(11.9, 12.5, version="1"))
    assert figures(rest)[name].reached is False


def test_a_late_answer_is_told_apart_from_a_request_that_went_the_wrong_way(rest: traffic.Traffic) -> None:
    name = "… to requests sent after done"
    rest.answers.append(traffic.Answer(11.9, 12.5, version="1"))
    assert figures(rest)[name].reached is True
    rest.answers.append(traffic.Answer(12.6, 12.7, version="1"))
    assert figures(rest)[name].reached is False


def test_one_failed_request_misses_the_goal(rest: traffic.Traffic) -> None:
    assert figures(rest)["failed requests, rest"].reached is True
    rest.answers.append(traffic.Answer(11.5, 11.6, error="RuntimeError: 503"))
    assert figures(rest)["failed requests, rest"].reached is False


def test_the_time_in_which_both_versions_answer_is_what_clients_saw(rest: traffic.Traffic) -> None:
    (span,) = [f for name, f in figures(rest).items() if name.startswith("promotion: both")]
    assert isinstance(span, harness.Reading)
    assert span.values == [pytest.approx(0.3)]


def test_a_run_without_requests_is_no_result(rest: traffic.Traffic) -> None:
    rest.answers = []
    with pytest.raises(RuntimeError, match="no request"):
        figures(rest)
