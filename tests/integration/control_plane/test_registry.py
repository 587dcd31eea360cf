from __future__ import annotations

import concurrent.futures

import pytest

from tests.support import worlds

pytestmark = pytest.mark.integration


def test_same_digest_is_the_same_version_and_another_the_next(client) -> None:
    first, again, other = client.register(1), client.register(1), client.register(2)
    assert [(r.status_code, r.json()["version"]) for r in (first, again, other)] == [(201, 1), (200, 1), (201, 2)]
    assert again.json() == first.json()
    assert first.headers["location"] == "/v1/models/digits/versions/1"


def test_publishers_at_once_get_numbers_without_gaps_or_doubles(client) -> None:
    digests = [1, 2, 3, 4, 5, 6] * 3
    with concurrent.futures.ThreadPoolExecutor(9) as publishers:
        answers = list(publishers.map(client.register, digests))
    by_digest = {(digest, answer.json()["version"]) for digest, answer in zip(digests, answers, strict=True)}
    assert len(by_digest) == 6
    assert sorted(version for _, version in by_digest) == [1, 2, 3, 4, 5, 6]
    assert sorted(answer.status_code for answer in answers) == [200] * 12 + [201] * 6


def test_lists_are_paged_to_the_end_without_losing_one(client) -> None:
    for version in range(1, 8):
        client.register(version).raise_for_status()
    seen, address, pages = [], "/v1/models/digits/versions?limit=3", 0
    while address:
        page = client.get(address).raise_for_status().json()
        seen += [item["version"] for item in page["items"]]
        address, pages = page["next"], pages + 1
    assert (seen, pages) == ([7, 6, 5, 4, 3, 2, 1], 3)

    for name in ("a", "b", "c"):
        client.post("/v1/models", json={"name": name}).raise_for_status()
    first = client.get("/v1/models?limit=3").json()
    assert [model["name"] for model in first["items"]] == ["a", "b", "c"]
    assert [model["name"] for model in client.get(first["next"]).json()["items"]] == ["digits"]
    trail = client.get("/v1/events?limit=2").json()
    assert trail["items"][0]["id"] > trail["items"][1]["id"]
    assert client.get(trail["next"]).json()["items"][0]["id"] < trail["items"][1]["id"]


def test_manifest_comes_back_as_it_was_given(client) -> None:
    golden = [{"file": "golden/a.png", "expected": {"text": "nul \x00 and snowman ☃", "n": [1.5, None]}}]
    client.register(1, golden=golden).raise_for_status()
    expected = worlds.manifest(version=1, golden=golden).model_dump(mode="json")
    assert client.get("/v1/models/digits/versions/1").json()["manifest"] == expected


def test_text_that_the_database_cannot_hold_is_refused_and_not_a_fault(client) -> None:
    answer = client.register(1, description="nul \x00")
    assert answer.status_code in (201, 422)
    assert client.post("/v1/models", json={"name": "a", "description": "\x00"}).status_code == 422
