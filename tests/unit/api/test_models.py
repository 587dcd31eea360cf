from __future__ import annotations

import json

from model_store import errors
from tests.support import worlds


def register(client, version: int = 1, model: str = "digits", **changes):
    body = {"manifest": worlds.manifest(version=version, **changes).model_dump(mode="json")}
    return client.post(f"/v1/models/{model}/versions", json=body)


def test_version_is_registered_when_its_archive_is_in_the_store(client, archives) -> None:
    archives.hold(1)
    response = register(client)
    assert response.status_code == 201
    assert response.json()["handler"] == "image_classifier"
    assert client.get("/v1/models/digits").json()["latest_version"] == 1


def test_version_without_an_archive_is_refused(client) -> None:
    response = register(client)
    assert (response.status_code, response.json()["type"]) == (422, "urn:slipway:error:archive-missing")
    assert client.get("/v1/models").json()["items"] == []


def test_truncated_archive_is_refused_with_both_sizes(client, archives) -> None:
    archives.hold(1, size_bytes=10)
    response = register(client)
    assert (response.status_code, response.json()["type"]) == (422, "urn:slipway:error:archive-size-mismatch")
    assert "10 bytes" in response.json()["detail"] and "1001" in response.json()["detail"]


def test_store_that_does_not_answer_is_a_503_and_a_known_version_needs_no_store(client, archives) -> None:
    archives.hold(1)
    register(client)
    archives.error = errors.StoreTimeout("s3://models did not answer within 5 s")
    response = register(client, 2)
    assert (response.status_code, response.json()["type"]) == (503, "urn:slipway:error:store-unavailable")
    assert "did not answer within 5 s" in response.json()["detail"]
    assert register(client, 1).status_code == 200


def test_manifest_of_another_model_or_a_newer_schema_is_refused(client) -> None:
    assert register(client, model="letters").json()["type"] == "urn:slipway:error:model-mismatch"
    assert register(client, schema_version=2).json()["type"] == "urn:slipway:error:manifest-too-new"


def test_manifest_with_an_unknown_field_is_refused_with_its_place(client) -> None:
    manifest = worlds.manifest().model_dump(mode="json")
    manifest["serving"]["batchsize"] = 4
    response = client.post("/v1/models/digits/versions", json={"manifest": manifest})
    assert response.json()["errors"][0]["pointer"] == "#/manifest/serving/batchsize"


def test_number_that_json_cannot_carry_is_refused_before_a_replica_chokes_on_it(client) -> None:
    manifest = worlds.manifest().model_dump(mode="json")
    body = json.dumps({"manifest": manifest | {"metrics": {"loss": 12345.5}}}).replace("12345.5", "1e999")
    response = client.post("/v1/models/digits/versions", content=body, headers={"content-type": "application/json"})
    assert (response.status_code, response.json()["type"]) == (422, "urn:slipway:error:number-out-of-range")


def test_changes_are_kept_with_who_made_them(client) -> None:
    headers = {"slipway-actor": "ada"}
    assert client.post("/v1/models", json={"name": "digits"}, headers=headers).status_code == 201
    assert client.post("/v1/models", json={"name": "digits"}, headers=headers).status_code == 200
    (event,) = client.get("/v1/events?model=digits").json()["items"]
    assert (event["actor"], event["action"]) == ("ada", "model.created")


def test_report_of_another_replica_than_the_path_names_is_refused(client) -> None:
    response = client.put("/v1/replicas/r2", json=worlds.report().model_dump(mode="json"))
    assert (response.status_code, response.json()["type"]) == (422, "urn:slipway:error:replica-mismatch")


def test_configuration_that_is_still_the_newest_is_a_204(client) -> None:
    revision = client.get("/v1/gateway/config").json()["revision"]
    assert client.get("/v1/gateway/config", params={"revision": revision}).status_code == 204
    assert client.get("/v1/gateway/config", params={"revision": "other"}).json()["revision"] == revision


def test_metrics_count_requests_by_route_and_not_by_address(client) -> None:
    for name in ("a", "b"):
        client.get(f"/v1/models/{name}")
    client.get("/v1/no/such/path")
    text = client.get("/metrics").text
    assert 'slipway_api_requests_total{method="GET",route="/v1/models/{model}",status="404"} 2.0' in text
    assert 'route="unmatched",status="404"} 1.0' in text
    assert 'slipway_rollouts{state="done"} 0.0' in text
    assert "slipway_build_info{" in text


def test_parts_show_in_their_lists(client, archives) -> None:
    archives.hold(1)
    register(client)
    client.put("/v1/replicas/r1", json=worlds.report(worlds.server(1)).model_dump(mode="json"))
    client.put("/v1/gateways/g1", json=worlds.gateway_report(None).model_dump(mode="json"))
    (replica,) = client.get("/v1/replicas?pool=cpu").json()["items"]
    assert (replica["replica"], replica["live"], replica["servers"][0]["state"]) == ("r1", True, "ready")
    (gateway,) = client.get("/v1/gateways").json()["items"]
    assert (gateway["gateway"], gateway["live"], gateway["is_current"]) == ("g1", True, False)
    assert client.get("/v1/replicas?pool=gpu").json()["items"] == []
