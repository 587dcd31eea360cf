from __future__ import annotations

import json
from typing import Any

from tests.unit.cli.conftest import Run, World, problem

PROMOTIONS = "/v1/models/digits/promotions"


def rollout(state: str, **changes: Any) -> dict[str, Any]:
    return {
        "id": "ro-1",
        "model": "digits",
        "stage": "production",
        "kind": "promotion",
        "from_version": 1,
        "to_version": 2,
        "state": state,
        "state_since": "2026-01-01T00:00:00Z",
        "actor": "ada",
        "reason": "",
        "progress": {"message": f"is {state}"},
        "error": None,
    } | changes


def test_promote_answers_at_once_with_the_rollout(world: World, run: Run) -> None:
    world.json("POST", PROMOTIONS, rollout("pending"), status=202)
    result = run("promote", "digits", "2", "--to", "staging", "--reason", "better", "--output", "json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["id"] == "ro-1"
    assert json.loads(world.requests[0].content) == {"version": 2, "to": "staging", "reason": "better"}


def test_waiting_ends_with_done_and_stdout_holds_json_alone(world: World, run: Run) -> None:
    world.json("POST", PROMOTIONS, rollout("pending"), status=202)
    world.json("GET", "/v1/rollouts/ro-1", rollout("loading"), rollout("shifting"), rollout("done"))
    result = run("promote", "digits", "2", "--wait", "--output", "json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["state"] == "done"
    assert "is loading" in result.stderr
    asked = [request.url.params["state"] for request in world.sent("GET", "/v1/rollouts/ro-1")]
    assert asked == ["pending", "loading", "shifting"]


def test_a_failed_promotion_prints_the_workers_words_and_exits_1(world: World, run: Run) -> None:
    error = 'Traceback (most recent call last):\n  File "h.py", line 3\nRuntimeError: the weights are from Mars'
    world.json("POST", PROMOTIONS, rollout("pending"), status=202)
    world.json("GET", "/v1/rollouts/ro-1", rollout("failed", error=error))
    result = run("promote", "digits", "2", "--wait", "--output", "json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["state"] == "failed"
    assert 'File "h.py", line 3' in result.stderr
    assert "RuntimeError: the weights are from Mars" in result.stderr
    assert "version 1 goes on serving" in result.stderr


def test_a_wait_that_takes_too_long_says_how_to_go_on_and_exits_5(world: World, run: Run) -> None:
    world.json("POST", PROMOTIONS, rollout("loading"), status=202)
    result = run("promote", "digits", "2", "--wait", "--timeout", "0")
    assert result.exit_code == 5
    assert "still loading" in result.stderr
    assert "slipway abort ro-1" in result.stderr


def test_a_second_promotion_names_the_first_and_exits_4(world: World, run: Run) -> None:
    world.answer("POST", PROMOTIONS, problem(409, "rollout ro-0 is moving digits", rollout="ro-0"))
    result = run("promote", "digits", "2")
    assert result.exit_code == 4
    assert "ro-0" in result.stderr


def test_an_unknown_model_exits_3(world: World, run: Run) -> None:
    result = run("promote", "nothing", "1")
    assert result.exit_code == 3


def test_a_stage_that_does_not_exist_is_a_mistake_of_usage(world: World, run: Run) -> None:
    result = run("promote", "digits", "2", "--to", "prod")
    assert result.exit_code == 2
    assert "production" in result.stderr
    assert world.requests == []


def test_rollback_sends_the_stage_and_waits(world: World, run: Run) -> None:
    world.json("POST", "/v1/models/digits/rollback", rollout("shifting", kind="rollback"), status=202)
    world.json("GET", "/v1/rollouts/ro-1", rollout("done", kind="rollback"))
    result = run("rollback", "digits", "--wait", "--output", "json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["state"] == "done"
    assert json.loads(world.requests[0].content)["stage"] == "production"


def test_rollouts_are_filtered_by_the_control_plane(world: World, run: Run) -> None:
    world.json("GET", "/v1/rollouts", {"items": [rollout("done")], "next": None})
    result = run("rollouts", "--model", "digits", "--state", "done", "--state", "failed")
    assert result.exit_code == 0
    assert "ro-1" in result.stdout
    assert world.requests[0].url.params.get_list("state") == ["done", "failed"]


def test_one_rollout_is_shown_with_its_error(world: World, run: Run) -> None:
    world.json("GET", "/v1/rollouts/ro-1", rollout("failed", error="it broke"))
    result = run("rollouts", "ro-1")
    assert result.exit_code == 0
    assert "it broke" in result.stdout
