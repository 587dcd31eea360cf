from __future__ import annotations

import json
from typing import Any

from tests.unit.cli.conftest import Run, World

MODEL: dict[str, Any] = {
    "name": "digits",
    "description": "[Hand]written digits",
    "latest_version": 2,
    "stages": {"production": 1, "staging": None},
}
VERSION: dict[str, Any] = {
    "model": "digits",
    "version": 2,
    "digest": "ab" * 32,
    "pool": "cpu",
    "size_bytes": 1_500_000,
    "handler": "image_classifier",
    "metrics": {"accuracy": 0.99},
    "created_at": "2026-01-01T00:00:00Z",
    "created_by": "ada",
    "stages": ["staging"],
    "replicas": {"a": "ready", "b": "ready", "c": "warming"},
}


def test_models_are_listed_with_what_their_stages_serve(world: World, run: Run) -> None:
    world.json("GET", "/v1/models", {"items": [MODEL], "next": None})
    result = run("models")
    assert result.exit_code == 0
    assert result.stdout.splitlines()[1].split() == ["digits", "2", "1", "-", "[Hand]written", "digits"]
    assert json.loads(run("models", "-o", "json").stdout) == [MODEL]


def test_no_models_is_said_beside_an_empty_list(world: World, run: Run) -> None:
    world.json("GET", "/v1/models", {"items": [], "next": None})
    assert "slipway push" in run("models").stderr
    assert json.loads(run("models", "-o", "json").stdout) == []


def test_versions_are_listed_with_size_stages_and_replicas(world: World, run: Run) -> None:
    world.json("GET", "/v1/models/digits/versions", {"items": [VERSION], "next": None})
    result = run("versions", "digits")
    for shown in ("abababababab", "staging", "2 ready, 1 warming", "1.5 MB", "accuracy=0.99"):
        assert shown in result.stdout


def test_describe_gives_model_stages_and_the_latest_version(world: World, run: Run) -> None:
    stages = {"items": [{"stage": "production", "stable": 1, "candidate": None, "history": [], "rollout": None}]}
    world.json("GET", "/v1/models/digits", MODEL)
    world.json("GET", "/v1/models/digits/stages", stages)
    world.json("GET", "/v1/models/digits/versions/2", VERSION)
    described = json.loads(run("describe", "digits", "--output", "json").stdout)
    assert described == {"model": MODEL, "stages": stages["items"], "version": VERSION}


def test_describe_of_an_unknown_model_exits_3(world: World, run: Run) -> None:
    assert run("describe", "nothing").exit_code == 3


def test_events_are_those_of_the_model(world: World, run: Run) -> None:
    world.json("GET", "/v1/events", {"items": [], "next": None})
    assert run("events", "digits", "-o", "json").stdout.strip() == "[]"
    assert world.requests[0].url.params["model"] == "digits"
