from __future__ import annotations

from pathlib import Path

import pytest

from serving.local import parts, ports, running, seaweed
from serving.local.home import Home, Stack
from serving.local.leftovers import HOME_VARIABLE


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path)
    home.create()
    return home


def prepared(home: Home, **environment: str) -> tuple[Stack, parts.Options]:
    options = parts.Options(environment={"PATH": "/bin"} | environment, with_store="SLIPWAY_STORE" not in environment)
    wishes = running.Wishes(home=home, ports={ports.GATEWAY: 28_080, ports.CONTROL_PLANE: 28_090}, options=options)
    return running.prepare(wishes), options


def built(home: Home, **environment: str) -> dict[str, parts.Part]:
    stack, options = prepared(home, **environment)
    return {part.name: part for part in parts.build(home, stack, options)}


def test_a_part_starts_only_after_parts_that_come_before_it(home: Home) -> None:
    names: list[str] = []
    for part in built(home).values():
        assert set(part.after) <= set(names)
        names.append(part.name)
    assert names == ["store", "control-plane", "gateway", "gateway-config", "agent"]


def test_the_gateway_is_stopped_first_and_the_store_last(home: Home) -> None:
    order = [part.name for part in parts.stop_order(list(built(home).values()))]
    assert order == ["gateway", "gateway-config", "agent", "control-plane", "store"]


def test_a_foreign_stores_credentials_reach_no_part_of_a_stack_with_its_own_store(home: Home) -> None:
    stack, options = prepared(home, AWS_PROFILE="work", AWS_SESSION_TOKEN="t", AWS_ACCESS_KEY_ID="theirs")
    for part in parts.build(home, stack, options):
        assert "AWS_PROFILE" not in part.environment
        assert "AWS_SESSION_TOKEN" not in part.environment
        assert part.environment["AWS_ACCESS_KEY_ID"] == stack.store.access_key


def test_a_store_that_the_environment_names_is_used_and_none_is_started(home: Home) -> None:
    found = built(home, SLIPWAY_STORE="s3://ours/models", AWS_PROFILE="work")
    assert "store" not in found
    assert found["agent"].environment["SLIPWAY_STORE"] == "s3://ours/models"
    assert found["agent"].environment["AWS_PROFILE"] == "work"
    assert found["control-plane"].after == ()


def test_every_part_can_be_found_again_by_its_home(home: Home) -> None:
    for part in built(home).values():
        assert part.environment[HOME_VARIABLE] == str(home.root)


def test_the_store_listens_on_loopback_and_on_named_ports_alone(home: Home) -> None:
    stack, _ = prepared(home)
    command = seaweed.command(folder=home.store, ports=stack.ports)
    assert "-ip=127.0.0.1" in command
    assert "-ip.bind=127.0.0.1" in command
    for name in seaweed.PORTS:
        assert f"-{name}={stack.ports[seaweed.port_name(name)]}" in command


def test_a_second_start_has_the_same_addresses_and_credentials(home: Home) -> None:
    first, _ = prepared(home)
    home.write(first)
    second, _ = prepared(home)
    assert second.ports == first.ports
    assert second.store == first.store


def test_credentials_differ_between_homes(tmp_path: Path) -> None:
    stacks: list[Stack] = []
    for name in ("one", "two"):
        home = Home(tmp_path / name)
        home.create()
        stacks.append(prepared(home)[0])
    assert stacks[0].store.secret_key != stacks[1].store.secret_key
