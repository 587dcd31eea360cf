from __future__ import annotations

import pytest
import sqlalchemy as sa

from tests.support import worlds


def kind(response) -> str:
    assert response.headers["content-type"] == "application/problem+json"
    body = response.json()
    assert body["status"] == response.status_code
    assert body["title"] and body["detail"]
    return body["type"].removeprefix("urn:slipway:error:")


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/v1/models/nobody", "model-not-found"),
        ("/v1/models/nobody/versions", "model-not-found"),
        ("/v1/models/nobody/stages/production", "model-not-found"),
        ("/v1/models/nobody/stages/canary", "stage-not-found"),
        ("/v1/rollouts/ro-1", "rollout-not-found"),
        ("/v1/no/such/path", "no-such-path"),
    ],
)
def test_what_does_not_exist_is_a_404_that_says_what(client, path: str, expected: str) -> None:
    response = client.get(path)
    assert response.status_code == 404
    assert kind(response) == expected


def test_unknown_version_of_a_known_model_names_those_there_are(client, archives) -> None:
    archives.hold(1)
    body = {"manifest": worlds.manifest().model_dump(mode="json")}
    client.post("/v1/models/digits/versions", json=body)
    response = client.get("/v1/models/digits/versions/7")
    assert (response.status_code, kind(response)) == (404, "version-not-found")
    assert response.json()["detail"] == "digits has no version 7: it has versions 1 to 1"


def test_wrong_method_is_a_405(client) -> None:
    response = client.delete("/v1/models")
    assert (response.status_code, kind(response)) == (405, "method-not-allowed")


def test_body_that_is_not_json_is_a_400(client) -> None:
    response = client.post("/v1/models", content=b'{"name": ', headers={"content-type": "application/json"})
    assert (response.status_code, kind(response)) == (400, "malformed-json")


@pytest.mark.parametrize("text", ["NaN", '"\\ud800"', "[" * 5000, "\xff"])
def test_json_that_other_readers_would_refuse_is_refused_here(client, text: str) -> None:
    content = b'{"name": "a", "description": ' + text.encode("latin-1") + b"}"
    for method, path in (("POST", "/v1/models"), ("PUT", "/v1/replicas/r1")):
        response = client.request(method, path, content=content, headers={"content-type": "application/json"})
        assert (response.status_code, kind(response)) == (400, "malformed-json")


def test_every_violation_of_a_body_has_its_pointer(client) -> None:
    response = client.post("/v1/models/digits/promotions", json={"version": "two", "to": "canary", "wat": 1})
    assert (response.status_code, kind(response)) == (422, "validation")
    assert {error["pointer"] for error in response.json()["errors"]} == {"#/version", "#/to", "#/wat"}


def test_violation_of_a_parameter_names_it(client) -> None:
    response = client.get("/v1/models?limit=501")
    assert kind(response) == "validation"
    assert response.json()["errors"][0]["parameter"] == "limit"


@pytest.mark.parametrize("name", ["", "Digits", "a/b", "-a", "a" * 64, "ü"])
def test_model_names_that_would_not_fit_a_url_or_a_label_are_refused(client, name: str) -> None:
    response = client.post("/v1/models", json={"name": name})
    assert (response.status_code, kind(response)) == (422, "validation")


def test_cursor_of_somebody_else_is_refused(client) -> None:
    assert kind(client.get("/v1/events?cursor=abc")) == "bad-cursor"


def test_body_over_the_limit_is_refused_with_the_limit_whether_declared_or_not(client) -> None:
    big = b'{"name": "a", "description": "' + b"x" * 70_000 + b'"}'
    headers = {"content-type": "application/json"}
    for content in (big, iter([big])):
        response = client.post("/v1/models", content=content, headers=headers)
        assert (response.status_code, kind(response)) == (413, "body-too-large")
        assert "65536 bytes" in response.json()["detail"]


def test_number_beyond_the_database_is_a_422(client) -> None:
    assert client.get(f"/v1/models/digits/versions/{10**30}").status_code == 422


def test_fault_of_ours_is_a_500_without_its_insides(client, monkeypatch) -> None:
    monkeypatch.setattr("serving.db.registry.models", lambda *_, **__: 1 / 0)
    response = client.get("/v1/models")
    assert (response.status_code, kind(response)) == (500, "internal")
    assert "division" not in response.text


def test_database_that_fails_is_a_503_with_retry_after(client, monkeypatch) -> None:
    def locked(*_, **__):
        raise sa.exc.OperationalError("SELECT", {}, Exception("database is locked"))

    monkeypatch.setattr("serving.db.registry.models", locked)
    response = client.get("/v1/models")
    assert (response.status_code, kind(response)) == (503, "database-unavailable")
    assert int(response.headers["retry-after"]) >= 1


def test_openapi_describes_problems_and_gives_examples(client) -> None:
    document = client.get("/openapi.json").json()
    schemas = document["components"]["schemas"]
    assert schemas["Rollout"]["examples"][0]["state"] == "loading"
    promote = document["paths"]["/v1/models/{model}/promotions"]["post"]
    assert {"202", "404", "409", "422", "503"} <= promote["responses"].keys()
    assert "application/problem+json" in promote["responses"]["409"]["content"]
    names = {parameter["name"] for parameter in promote["parameters"]}
    assert {"idempotency-key", "slipway-actor"} <= names
