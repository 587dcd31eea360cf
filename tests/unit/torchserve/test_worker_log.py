from __future__ import annotations

import json
from pathlib import Path

from serving.torchserve import worker_log

TRACE = [
    "Traceback (most recent call last):",
    '  File "model_service_worker.py", line 301, in <module>',
    "    worker.run_server()",
    "ValueError: the weights are for another architecture",
]


def log(*messages: str, thread: str = "W-9000-noop_1-stdout") -> list[str]:
    return [json.dumps({"thread": thread, "message": message}) for message in messages]


def test_a_traceback_is_found_between_the_worker_s_farewell_and_its_next_life() -> None:
    lines = log("Torch worker started.", "Backend worker process died.", *TRACE, "[PID]17", "Torch worker started.")
    assert worker_log.died(lines)
    assert worker_log.failure(lines) == "\n".join(TRACE)


def test_the_cause_is_kept_and_not_what_torchserve_raised_because_of_it() -> None:
    lines = log(
        "Failed to load model x",
        *TRACE,
        "Backend worker process died.",
        "Traceback (most recent call last):",
        "RuntimeError: 500 - Unknown exception",
    )
    assert worker_log.failure(lines) == "\n".join(TRACE)


def test_two_workers_that_fail_at_once_do_not_mix() -> None:
    first = log("Backend worker process died.", *TRACE, thread="W-9000")
    second = log("Backend worker process died.", TRACE[0], "KeyError: 'x'", thread="W-9001")
    mixed = [line for pair in zip(first, second, strict=False) for line in pair] + first[len(second) :]
    assert worker_log.failure(mixed) == "\n".join(TRACE)


def test_a_worker_that_left_no_traceback_is_quoted() -> None:
    lines = log("Torch worker started.", "model_name: x, batchSize: 8", "Fatal Python error: Segmentation fault")
    assert worker_log.failure(lines) == "Fatal Python error: Segmentation fault"


def test_a_worker_that_said_nothing_gives_nothing() -> None:
    assert worker_log.failure(log("[PID]17", "Torch worker started.")) is None
    assert worker_log.failure([]) is None


def test_lines_that_are_no_json_are_skipped() -> None:
    assert worker_log.failure(["{broken", "", *log(*TRACE)]) == "\n".join(TRACE)


def test_a_very_long_error_keeps_its_end_where_the_exception_is_named() -> None:
    found = worker_log.failure(log(TRACE[0], *["  frame"] * 5_000, TRACE[-1]))
    assert found is not None
    assert len(found) <= worker_log.ERROR_CHARACTERS
    assert found.endswith(TRACE[-1])


def test_only_the_end_of_a_long_log_is_read(tmp_path: Path) -> None:
    path = tmp_path / "worker.log"
    path.write_text("x" * 10 * worker_log.TAIL_BYTES + "\nlast\n")
    lines = worker_log.tail(path)
    assert lines[-1] == "last"
    assert sum(map(len, lines)) <= worker_log.TAIL_BYTES
    assert worker_log.tail(tmp_path / "missing") == []


def test_what_the_server_says_is_told_without_java_s_stack() -> None:
    line = {
        "message": "Backend worker error",
        "traceback": " org.x.Error: no answer in given time\n\tat org.x.Y.run(Y.java:1)",
    }
    assert worker_log.server_failure([json.dumps(line)]) == "Backend worker error\norg.x.Error: no answer in given time"
