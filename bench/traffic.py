"""Steady traffic from a process of its own, with an account of every answer.

``python -m bench.traffic rest|grpc --gateway URL --model NAME --file IMAGE`` sends at a fixed rate, however slow the
answers are, until its standard input closes; then it prints the account as JSON. Times are ``time.monotonic()``, which
all processes of a machine share.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType

import grpc.aio
import httpx

from serving.protocol import inference_pb2, inference_pb2_grpc

VERSION_HEADER = "slipway-model-version"
REQUEST_TIMEOUT_S = 30
END_TIMEOUT_S = 60

Send = Callable[[], Awaitable[str | None]]


@dataclass(frozen=True, slots=True)
class Answer:
    sent_at: float
    answered_at: float
    version: str | None = None
    error: str | None = None


class Traffic:
    """The other end: starts the process, and has every answer once the ``with`` block has ended."""

    def __init__(self, protocol: str, *, gateway: str, model: str, file: Path, rate: float) -> None:
        self.protocol = protocol
        self.answers: list[Answer] = []
        self._command = [sys.executable, "-m", "bench.traffic", protocol, "--gateway", gateway, "--model", model]
        self._command += ["--file", str(file), "--rate", str(rate)]

    def __enter__(self) -> Traffic:
        self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            account, _ = self._process.communicate(timeout=END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise
        if error is None:
            self.answers = [Answer(**answer) for answer in json.loads(account)]

    @property
    def failures(self) -> list[str]:
        return [answer.error for answer in self.answers if answer.error is not None]

    def of_version(self, version: int, *, after: float, before: float) -> list[Answer]:
        """Answers of a version that came within a span of ``time.monotonic()``."""
        return [
            answer for answer in self.answers if answer.version == str(version) and after < answer.answered_at < before
        ]


async def drive(send: Send, *, rate: float, stop: asyncio.Event) -> list[Answer]:
    """Call ``send`` ``rate`` times a second; late by our own doing means: catch up, skip nothing."""
    answers: list[Answer] = []

    async def one() -> None:
        sent_at = time.monotonic()
        try:
            version = await send()
        except Exception as error:  # every failure is evidence, of whatever kind
            answers.append(Answer(sent_at, time.monotonic(), error=f"{type(error).__name__}: {error}"))
        else:
            answers.append(Answer(sent_at, time.monotonic(), version=version))

    due = time.monotonic()
    async with asyncio.TaskGroup() as under_way:
        while not stop.is_set():
            under_way.create_task(one())
            due += 1 / rate
            await asyncio.sleep(max(0.0, due - time.monotonic()))
    return answers


async def _rest(gateway: str, model: str, body: bytes, rate: float, stop: asyncio.Event) -> list[Answer]:
    async with httpx.AsyncClient(timeout=REQUEST_TIMEOUT_S) as client:

        async def send() -> str | None:
            answer = await client.post(
                f"{gateway}/predictions/{model}", content=body, headers={"content-type": "image/png"}
            )
            if answer.status_code != 200:
                raise RuntimeError(f"{answer.status_code}: {answer.text[:300]}")
            return answer.headers.get(VERSION_HEADER)

        return await drive(send, rate=rate, stop=stop)


async def _grpc(gateway: str, model: str, body: bytes, rate: float, stop: asyncio.Event) -> list[Answer]:
    async with grpc.aio.insecure_channel(gateway.removeprefix("http://")) as channel:
        stub = inference_pb2_grpc.InferenceAPIsServiceStub(channel)
        request = inference_pb2.PredictionsRequest(model_name=model, input={"data": body})

        async def send() -> str | None:
            call = stub.Predictions(request, timeout=REQUEST_TIMEOUT_S)
            await call
            for metadata in (await call.initial_metadata(), await call.trailing_metadata()):
                for name, value in metadata:
                    if name == VERSION_HEADER:
                        return str(value)
            return None

        return await drive(send, rate=rate, stop=stop)


async def _main(given: argparse.Namespace) -> list[Answer]:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), stop.set)
    protocol = _rest if given.protocol == "rest" else _grpc
    return await protocol(given.gateway, given.model, given.file.read_bytes(), given.rate, stop)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Send an image at a fixed rate until standard input closes.")
    parser.add_argument("protocol", choices=["rest", "grpc"])
    parser.add_argument("--gateway", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--file", type=Path, required=True)
    parser.add_argument("--rate", type=float, default=50)
    json.dump([asdict(answer) for answer in asyncio.run(_main(parser.parse_args()))], sys.stdout)
