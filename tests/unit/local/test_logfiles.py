from __future__ import annotations

import json
from pathlib import Path

from serving.local import logfiles


def test_a_log_that_is_too_large_is_put_aside_and_its_writer_goes_on(tmp_path: Path) -> None:
    log = tmp_path / "part.log"
    with log.open("ab", buffering=0) as writer:
        writer.write(b"x" * 60 + b"\n" + b"y" * 60 + b"\n")
        assert logfiles.rotate(log, max_bytes=100)
        writer.write(b"after\n")
    assert log.read_bytes() == b"after\n"
    kept = (tmp_path / "part.log.1").read_bytes()
    assert len(kept) == 100
    assert kept.endswith(b"y\n")


def test_a_small_log_and_a_missing_one_are_left_alone(tmp_path: Path) -> None:
    log = tmp_path / "part.log"
    assert not logfiles.rotate(log)
    log.write_text("a line\n")
    assert not logfiles.rotate(log)
    assert log.read_text() == "a line\n"


def test_the_tail_is_the_last_lines(tmp_path: Path) -> None:
    log = tmp_path / "part.log"
    assert logfiles.tail(log, 3) == []
    log.write_text("".join(f"{number}\n" for number in range(100_000)))
    assert logfiles.tail(log, 2) == ["99998", "99999"]
    assert logfiles.tail(log, 0) == []


def test_a_follower_gives_whole_new_lines_also_after_a_rotation(tmp_path: Path) -> None:
    log = tmp_path / "part.log"
    log.write_text("old\n")
    follower = logfiles.Follower(log)
    with log.open("a") as writer:
        writer.write("new\nhal")
        writer.flush()
        assert list(follower.new_lines()) == ["new"]
        writer.write("f\n")
        writer.flush()
        assert list(follower.new_lines()) == ["half"]
    log.write_text("z\n")
    assert list(follower.new_lines()) == ["z"]


def test_our_json_is_shown_as_a_line_for_people_and_the_rest_as_it_is() -> None:
    entry = {"time": "T", "level": "info", "part": "agent", "logger": "x", "message": "ready", "model": "digits"}
    assert logfiles.readable(json.dumps(entry)) == "T info    ready (model=digits)"
    assert logfiles.readable(json.dumps(entry | {"traceback": "Traceback: …"})).endswith("\nTraceback: …")
    for text in ("plain", '{"other": 1}', "[1]", "3", '"text"', ""):
        assert logfiles.readable(text) == text
