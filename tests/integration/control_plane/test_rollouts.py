"""Promotions, rollbacks and aborts over HTTP, with a replica and a gateway played by the test."""

from __future__ import annotations

import concurrent.futures
import time

import pytest

from serving.api import rollouts as rollout_views
from serving.domain import routing, wire
from serving.domain.wire import ServerState
from serving.rollout import controller
from tests.support import control_plane, waiting, worlds

pytestmark = pytest.mark.integration


def serve_first_version(client: control_plane.Client) -> None:
    client.register(1).raise_for_status()
    client.complete(client.promote(1).json()["id"])


def test_promotion_is_accepted_at_once_and_done_when_replica_and_gateway_have_followed(client) -> None:
    client.register(1).raise_for_status()
    response = client.promote(1, reason="first", headers={"slipway-actor": "ada"})
    assert response.status_code == 202
    accepted = response.json()
    assert response.headers["location"] == f"/v1/rollouts/{accepted['id']}"
    assert (accepted["state"], accepted["actor"], accepted["reason"]) == ("pending", "ada", "first")

    client.wait_for(accepted["id"], "loading")
    client.follow_as_replica(accepted["id"], "shifting")
    done = client.finish_as_gateway(accepted["id"])
    assert done["ended_at"] is not None and done["error"] is None
    stage = client.get("/v1/models/digits/stages/production").json()
    assert (stage["stable"], stage["candidate"], stage["rollout"]) == (1, None, None)

    trail = client.get("/v1/events", params={"rollout": accepted["id"]}).json()["items"]
    assert [event["action"] for event in reversed(trail)] == [
        "promotion.requested",
        "rollout.loading",
        "rollout.shifting",
        "rollout.done",
    ]
    assert trail[-1]["actor"] == "ada" and trail[0]["evidence"]["gateways_applied"] == ["g1"]


def test_switch_waits_for_no_tick_once_the_version_is_loaded(database_url, monkeypatch) -> None:
    monkeypatch.setattr(controller, "TICK_S", 60.0)
    monkeypatch.setattr(rollout_views, "FALLBACK_POLL_S", 60.0)
    with control_plane.in_thread(database_url) as client, concurrent.futures.ThreadPoolExecutor(2) as waiter:
        serve_first_version(client)
        client.register(2).raise_for_status()
        rollout = client.promote(2).json()["id"]
        generation = holding(client, 2).generation
        held = [worlds.server(1), worlds.server(2)]
        client.report(worlds.report(*held, replica="r1", generation=generation))

        revision = client.config().revision
        while production(client) != {2: 10_000}:
            answer = client.get("/v1/gateway/config", params={"revision": revision, "wait_s": 10})
            assert answer.status_code == 200, "the wait ended without news"
            revision = answer.json()["revision"]
        waiter.submit(client.get, f"/v1/rollouts/{rollout}", params={"wait_s": 20, "state": "loading"}).result(10)
        done = waiter.submit(client.get, f"/v1/rollouts/{rollout}", params={"wait_s": 20, "state": "shifting"})
        client.obey_as_gateway()
        assert done.result(timeout=10).json()["state"] == "done"


def holding(client: control_plane.Client, version: int) -> wire.Assignment:
    """The assignment, once the version is part of it."""

    def found() -> wire.Assignment | None:
        assignment = client.assignment()
        return assignment if version in [entry.version for entry in assignment.versions] else None

    return waiting.wait_until(found, timeout_s=20, what=f"version {version} to be assigned")


def production(client: control_plane.Client) -> dict[int, int]:
    return routing.weights_of(client.config(), "digits", "production")


def test_two_promotions_at_once_have_exactly_one_winner_and_the_other_learns_its_id(client) -> None:
    for version in (1, 2):
        client.register(version).raise_for_status()
    with concurrent.futures.ThreadPoolExecutor(8) as callers:
        answers = list(callers.map(client.promote, [1, 2] * 4))
    accepted = [answer for answer in answers if answer.status_code == 202]
    refused = [answer for answer in answers if answer.status_code == 409]
    assert len(accepted) == 4 and len(refused) == 4
    (winner,) = {answer.json()["id"] for answer in accepted}
    assert {answer.json()["rollout"] for answer in refused} == {winner}
    assert {answer.json()["type"] for answer in refused} == {"urn:slipway:error:rollout-in-progress"}
    assert len(client.get("/v1/rollouts").json()["items"]) == 1


def test_promoting_what_is_under_way_or_already_stable_changes_nothing(client) -> None:
    client.register(1).raise_for_status()
    first = client.promote(1)
    again = client.promote(1)
    assert (again.status_code, again.json()["id"]) == (202, first.json()["id"])
    client.complete(first.json()["id"])
    stable = client.promote(1)
    assert (stable.status_code, stable.json()["id"], stable.json()["state"]) == (200, first.json()["id"], "done")


def test_version_that_does_not_load_fails_with_its_traceback_and_the_old_one_keeps_serving(client) -> None:
    serve_first_version(client)
    client.register(2).raise_for_status()
    rollout = client.promote(2).json()["id"]
    client.wait_for(rollout, "loading")
    generation = holding(client, 2).generation
    broken = worlds.server(2, ServerState.FAILED, error="Traceback …\nKeyError: 'weights\x00'")
    client.report(worlds.report(worlds.server(1), broken, replica="r1", generation=generation))
    failed = client.wait_for(rollout, "failed")
    assert "KeyError: 'weights" in failed["error"]
    assert client.get("/v1/models/digits").json()["stages"]["production"] == 1
    assert [entry.version for entry in client.assignment(generation=generation, wait_s=5).versions] == [1]
    (model,) = client.config().models
    assert [(weight.version, weight.weight) for weight in model.stages[0].weights] == [(1, 10_000)]


def test_rollback_to_a_warm_version_needs_no_loading(client) -> None:
    serve_first_version(client)
    client.register(2).raise_for_status()
    client.complete(client.promote(2).json()["id"])
    assert {entry.version for entry in holding(client, 2).versions} == {1, 2}, "1 stays warm"

    response = client.post("/v1/models/digits/rollback", json={"reason": "nonsense for sevens"})
    assert response.status_code == 202
    back = response.json()
    assert (back["kind"], back["from_version"], back["to_version"]) == ("rollback", 2, 1)
    client.finish_as_gateway(back["id"])
    stage = client.get("/v1/models/digits/stages/production").json()
    assert (stage["stable"], stage["last_good"]) == (1, None)
    refused = client.post("/v1/models/digits/rollback", json={})
    assert (refused.status_code, refused.json()["type"]) == (409, "urn:slipway:error:nothing-to-roll-back-to")


def test_abort_takes_the_candidate_away_and_a_second_abort_is_refused(client) -> None:
    serve_first_version(client)
    client.register(2).raise_for_status()
    rollout = client.promote(2).json()["id"]
    client.wait_for(rollout, "loading")
    aborted = client.post(
        f"/v1/rollouts/{rollout}:abort", json={"reason": "wrong one"}, headers={"slipway-actor": "bob"}
    ).json()
    assert (aborted["state"], aborted["error"]) == ("rolled_back", "aborted by bob: wrong one")
    assert client.get("/v1/models/digits/stages/production").json()["candidate"] is None
    assert client.post(f"/v1/rollouts/{rollout}:abort").status_code == 409


def test_stages_are_apart(client) -> None:
    serve_first_version(client)
    client.register(2).raise_for_status()
    client.complete(client.promote(2, to="staging").json()["id"])
    assert client.get("/v1/models/digits").json()["stages"] == {"production": 1, "staging": 2}


def test_waiting_for_a_rollout_ends_with_its_next_state_and_not_before_the_time(client) -> None:
    client.register(1).raise_for_status()
    rollout = client.promote(1).json()["id"]
    client.wait_for(rollout, "loading")
    began = time.perf_counter()
    assert client.get(f"/v1/rollouts/{rollout}", params={"wait_s": 0.5}).json()["state"] == "loading"
    assert time.perf_counter() - began >= 0.5
    with concurrent.futures.ThreadPoolExecutor(1) as waiter:
        news = waiter.submit(client.get, f"/v1/rollouts/{rollout}", params={"wait_s": 20, "state": "loading"})
        client.post(f"/v1/rollouts/{rollout}:abort")
        assert news.result(timeout=5).json()["state"] == "rolled_back"


def test_promotion_repeated_under_the_same_key_is_answered_alike(client) -> None:
    client.register(1).raise_for_status()
    key = {"idempotency-key": "k-1"}
    first = client.promote(1, headers=key)
    client.complete(first.json()["id"])
    again = client.promote(1, headers=key)
    assert (again.status_code, again.json()) == (first.status_code, first.json())
    assert again.headers["idempotency-replayed"] == "true"
    assert again.headers["location"] == first.headers["location"]
    other = client.promote(1, reason="another", headers=key)
    assert (other.status_code, other.json()["type"]) == (422, "urn:slipway:error:idempotency-key-reused")


def test_rollback_repeated_under_the_same_key_does_not_go_back_twice(client) -> None:
    serve_first_version(client)
    for version in (2, 3):
        client.register(version).raise_for_status()
        client.complete(client.promote(version).json()["id"])
    key = {"idempotency-key": "back"}
    first = client.post("/v1/models/digits/rollback", json={}, headers=key)
    client.complete(first.json()["id"])
    again = client.post("/v1/models/digits/rollback", json={}, headers=key)
    assert again.json()["id"] == first.json()["id"]
    assert client.get("/v1/models/digits").json()["stages"]["production"] == 2


def test_refused_request_does_not_use_up_its_key(client) -> None:
    key = {"idempotency-key": "early"}
    assert client.promote(1, headers=key).status_code == 404
    client.register(1).raise_for_status()
    assert client.promote(1, headers=key).status_code == 202
