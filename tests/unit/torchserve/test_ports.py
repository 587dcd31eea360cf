from __future__ import annotations

import random
import socket

import pytest

from serving.torchserve import errors, ports


def test_all_ports_differ_and_come_from_the_range() -> None:
    picked = ports.pick(host="127.0.0.1", span=(21_000, 21_050), chance=random.Random(1))
    numbers = [picked.rest, picked.grpc, picked.management, picked.metrics, picked.grpc_management]
    assert len(set(numbers)) == 5
    assert all(21_000 <= number <= 21_050 for number in numbers)


def test_a_range_that_is_too_small_is_refused_with_the_setting_to_change() -> None:
    with pytest.raises(errors.NoFreePort, match="SLIPWAY_PORT_RANGE"):
        ports.pick(host="127.0.0.1", span=(21_000, 21_002))


def test_a_version_listens_again_where_it_listened_before() -> None:
    before = ports.pick(host="127.0.0.1", chance=random.Random(2))
    assert ports.pick(host="127.0.0.1", chance=random.Random(3), preferred=before) == before


def test_ports_that_somebody_took_meanwhile_are_not_insisted_on() -> None:
    before = ports.pick(host="127.0.0.1", chance=random.Random(4))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", before.grpc))
        taken.listen()
        assert ports.pick(host="127.0.0.1", chance=random.Random(5), preferred=before).grpc != before.grpc
