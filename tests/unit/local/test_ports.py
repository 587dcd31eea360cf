from __future__ import annotations

import random
import socket
from collections.abc import Iterator

import pytest

from serving.local import errors, ports


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind((ports.LOOPBACK, 0))
        listener.listen()
        yield int(listener.getsockname()[1])


def free() -> int:
    with socket.socket() as probe:
        probe.bind((ports.LOOPBACK, 0))
        return int(probe.getsockname()[1])


def choose(
    *,
    private: dict[str, int] | None = None,
    asked: dict[str, int | None] | None = None,
    kept: dict[str, int] | None = None,
) -> dict[str, int]:
    known: dict[str, int | None] = {ports.GATEWAY: free(), ports.CONTROL_PLANE: free()}
    return ports.choose(private or {}, asked=known | (asked or {}), kept=kept or {}, chance=random.Random(1))


def test_a_port_that_was_asked_for_and_is_taken_is_named_with_its_option(taken: int) -> None:
    with pytest.raises(errors.PortTaken, match=rf"port {taken} .*--control-port"):
        choose(asked={ports.CONTROL_PLANE: taken})


def test_one_port_for_two_parts_is_refused() -> None:
    port = free()
    with pytest.raises(errors.PortTaken, match="twice"):
        choose(asked={ports.GATEWAY: port, ports.CONTROL_PLANE: port})


def test_private_ports_are_free_and_all_different() -> None:
    chosen = choose(private={f"part-{number}": 0 for number in range(30)})
    assert len(set(chosen.values())) == len(chosen) == 32


def test_a_private_port_of_the_last_run_is_used_again_unless_it_is_taken(taken: int) -> None:
    before = free()
    chosen = choose(private={"a": 0, "b": 0}, kept={"a": before, "b": taken})
    assert chosen["a"] == before
    assert chosen["b"] != taken


def test_a_private_port_whose_companion_is_taken_is_not_chosen(taken: int) -> None:
    chosen = choose(private={"a": 10}, kept={"a": taken - 10})
    assert chosen["a"] != taken - 10


def test_a_port_that_people_know_is_kept_from_the_last_run_and_an_option_wins_over_it() -> None:
    before, now = free(), free()
    kept = {ports.GATEWAY: before, ports.CONTROL_PLANE: before}
    chosen = choose(asked={ports.GATEWAY: None, ports.CONTROL_PLANE: now}, kept=kept)
    assert chosen == {ports.GATEWAY: before, ports.CONTROL_PLANE: now}
