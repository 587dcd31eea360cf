from __future__ import annotations

import io
import logging
from pathlib import Path

import pytest

from handlers import output


@pytest.fixture
def target() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def bounded(target: io.StringIO) -> output.BoundedOutput:
    return output.BoundedOutput(target)


def test_no_printed_line_can_look_like_a_metric(bounded: output.BoundedOutput, target: io.StringIO) -> None:
    print("[METRICS]a.Count:1|#Level:Model\nx\r[METRICS]b.Count:1", file=bounded)
    lines = target.getvalue().replace("\r", "\n").splitlines()
    assert len(lines) == 3
    assert all(line.startswith(output.MARK) for line in lines)


def test_megabytes_are_dropped_and_said_once(bounded: output.BoundedOutput, target: io.StringIO) -> None:
    for _ in range(5000):
        print("y" * 1000, file=bounded)
    print("z" * 5_000_000, file=bounded)
    written = target.getvalue()
    assert len(written) < 2 * output.WINDOW_CHARACTERS
    assert written.count("is dropped") == 1


def test_after_the_window_output_is_written_again_with_what_was_lost(
    bounded: output.BoundedOutput, target: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(100):
        print("y" * 1000, file=bounded)
    later = output.time.monotonic() + output.WINDOW_S + 1
    monkeypatch.setattr(output.time, "monotonic", lambda: later)
    print("again", file=bounded)
    assert target.getvalue().endswith("characters of output were dropped\n[handler] again\n")


def test_pieces_of_a_line_are_joined_and_flushed(bounded: output.BoundedOutput, target: io.StringIO) -> None:
    print("a", end="", file=bounded)
    print("b", file=bounded)
    print("c", end="", flush=True, file=bounded)
    bounded.buffer.write(b"bytes\n")
    assert target.getvalue() == "[handler] ab\n[handler] c\n[handler] bytes\n"


def record(path: str, message: str) -> logging.LogRecord:
    return logging.LogRecord("root", logging.INFO, path, 1, message, None, None)


def test_only_torchserves_own_records_keep_their_form(
    bounded: output.BoundedOutput, target: io.StringIO, tmp_path: Path
) -> None:
    divert = output.Divert(bounded, own=tmp_path / "ts", formatter=logging.StreamHandler())
    assert divert.filter(record(f"{tmp_path}/ts/metrics/caching_metric.py", "[METRICS]real"))
    assert not divert.filter(record(f"{tmp_path}/ts/protocol.py", "Backend received inference at: 5"))
    assert not divert.filter(record(f"{tmp_path}/own.py", "[METRICS]forged"))
    assert target.getvalue() == "[handler] [METRICS]forged\n"
