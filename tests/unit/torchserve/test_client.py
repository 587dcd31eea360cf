from __future__ import annotations

import asyncio

import httpx
import pytest

from serving.torchserve import client, errors
from serving.torchserve.ports import Ports

DESCRIBED = [
    {
        "modelName": "noop",
        "workers": [
            {"id": "9000", "status": "READY", "pid": 17},
            {"id": "9001", "status": "UNLOADING", "pid": -1},
        ],
        "jobQueueStatus": {"remainingCapacity": 97, "pendingRequests": 3},
    }
]


def describe(answer: httpx.Response | Exception) -> client.Description:
    def respond(request: httpx.Request) -> httpx.Response:
        assert request.url == "http://127.0.0.1:3/models/noop/7"
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def ask() -> client.Description:
        async with httpx.AsyncClient(transport=httpx.MockTransport(respond)) as http:
            ports = Ports(rest=1, grpc=2, management=3, metrics=4, grpc_management=5)
            return await client.Client(model="noop", version=7, host="10.0.0.1", ports=ports, http=http).describe()

    return asyncio.run(ask())


def test_workers_and_queue_are_read() -> None:
    described = describe(httpx.Response(200, json=DESCRIBED))
    assert described.ready == 1
    assert [worker.pid for worker in described.workers] == [17, -1]
    assert (described.queued, described.queue_free) == (3, 97)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (httpx.ConnectError("refused"), errors.Unreachable),
        (httpx.ReadTimeout("slow"), errors.Unreachable),
        (httpx.Response(404, json={"code": 404}), errors.Unloaded),
        (httpx.Response(500, text="oops"), errors.BadAnswer),
        (httpx.Response(200, text="not json"), errors.BadAnswer),
        (httpx.Response(200, json=[]), errors.BadAnswer),
    ],
)
def test_each_way_of_not_answering_has_its_error(
    answer: httpx.Response | Exception, error: type[errors.ServerError]
) -> None:
    with pytest.raises(error):
        describe(answer)
