"""Things die: parts, processes, the whole stack. What was promoted answers again by itself, or never stopped."""

from __future__ import annotations

import json
import os
import signal
import socket
from pathlib import Path

import boto3
import httpx
import psutil
import pytest
from botocore.config import Config

from tests.e2e.traffic import Traffic
from tests.support.stack import CommandFailed, Stack, free_port
from tests.support.waiting import wait_until

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def sample(digits: Path) -> bytes:
    return (digits.parent / "samples" / "3.png").read_bytes()


@pytest.fixture
def serving_digits(stack: Stack, digits: Path) -> Stack:
    pushed = stack.push(digits)
    stack.promote("digits", pushed["version"])
    return stack


def predict(stack: Stack, sample: bytes, *, timeout_s: float = 30) -> httpx.Response:
    return httpx.post(
        f"{stack.gateway}/predictions/digits",
        content=sample,
        headers={"content-type": "image/png"},
        timeout=timeout_s,
    )


def answers(stack: Stack, sample: bytes) -> bool:
    try:
        return predict(stack, sample).status_code == 200
    except httpx.TransportError:
        return False


def server_processes(stack: Stack) -> list[psutil.Process]:
    """The JVMs of this stack: TorchServe, one per version."""
    found: list[psutil.Process] = []
    for process in psutil.process_iter(["cmdline"]):
        command = " ".join(process.info["cmdline"] or [])
        if "org.pytorch.serve.ModelServer" in command and str(stack.home) in command:
            found.append(process)
    return found


@pytest.mark.parametrize("part", ["control-plane", "store", "gateway-config"])
def test_serving_goes_on_while_a_part_is_killed_and_comes_back(serving_digits: Stack, sample: bytes, part: str) -> None:
    stack = serving_digits
    before = stack.parts()[part]["pid"]

    def send() -> str | None:
        answer = predict(stack, sample)
        answer.raise_for_status()
        return answer.headers["slipway-model-version"]

    with Traffic(send, rate=10) as traffic:
        os.kill(before, signal.SIGKILL)
        wait_until(
            lambda: (now := stack.parts()[part])["pid"] not in (None, before) and now["state"] == "ready",
            timeout_s=60,
            what=f"{part} to be restarted",
        )
    assert traffic.failures() == []


def test_a_killed_agent_adopts_the_processes_that_still_serve(serving_digits: Stack, sample: bytes) -> None:
    stack = serving_digits
    agent = stack.parts()["agent"]["pid"]
    servers = {process.pid for process in server_processes(stack)}
    assert servers

    def send() -> str | None:
        answer = predict(stack, sample)
        answer.raise_for_status()
        return answer.headers["slipway-model-version"]

    with Traffic(send, rate=10) as traffic:
        os.kill(agent, signal.SIGKILL)
        wait_until(
            lambda: (now := stack.parts()["agent"])["pid"] not in (None, agent) and now["state"] == "ready",
            timeout_s=60,
            what="the agent to be restarted",
        )
    assert traffic.failures() == []
    assert servers <= {process.pid for process in server_processes(stack)}


def test_a_killed_torchserve_process_is_started_again(serving_digits: Stack, sample: bytes) -> None:
    stack = serving_digits
    killed = server_processes(stack)
    for process in killed:
        process.send_signal(signal.SIGKILL)
    wait_until(lambda: answers(stack, sample), timeout_s=120, what="digits to answer again")


def test_an_agent_without_control_plane_or_store_serves_what_it_last_held(serving_digits: Stack, sample: bytes) -> None:
    stack = serving_digits
    assert answers(stack, sample)
    supervisor_parts = stack.parts()
    # Both are stopped for as long as the check takes; SIGSTOP keeps the supervisor from replacing them.
    for part in ("control-plane", "store"):
        os.kill(supervisor_parts[part]["pid"], signal.SIGSTOP)
    try:
        for process in server_processes(stack):
            process.send_signal(signal.SIGKILL)
        wait_until(lambda: answers(stack, sample), timeout_s=120, what="digits to answer without a control plane")
    finally:
        for part in ("control-plane", "store"):
            if psutil.pid_exists(supervisor_parts[part]["pid"]):
                os.kill(supervisor_parts[part]["pid"], signal.SIGCONT)


def test_the_whole_stack_killed_and_started_again_answers_as_before(serving_digits: Stack, sample: bytes) -> None:
    stack = serving_digits
    version = predict(stack, sample).headers["slipway-model-version"]
    status = stack.json("status")
    victims = [part["pid"] for part in status["parts"] if part["pid"]]
    supervisor = psutil.Process(victims[0]).parent()
    assert supervisor is not None
    supervisor.kill()
    for pid in victims:
        os.kill(pid, signal.SIGKILL)
    stack.up()
    wait_until(lambda: answers(stack, sample), timeout_s=60, what="digits to answer after SIGKILL of everything")
    assert predict(stack, sample).headers["slipway-model-version"] == version


def test_an_orderly_stop_leaves_no_process_and_a_second_start_answers_at_once(
    serving_digits: Stack, sample: bytes
) -> None:
    stack = serving_digits
    pids = [part["pid"] for part in stack.json("status")["parts"]] + [p.pid for p in server_processes(stack)]
    stack.down()
    assert [pid for pid in pids if psutil.pid_exists(pid)] == []
    stack.up()
    # `up` returns only once everything that was promoted answers: no waiting here.
    assert answers(stack, sample)


def test_a_second_up_on_the_same_home_is_refused_in_one_line(stack: Stack) -> None:
    with pytest.raises(CommandFailed) as failure:
        stack.up()
    assert failure.value.returncode != 0
    assert str(stack.home) in failure.value.stderr
    assert "Traceback" not in failure.value.stderr


def test_a_taken_port_is_named_and_nothing_is_left_running(tmp_path: Path) -> None:
    other = Stack(home=tmp_path / "home")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", other.port))
        taken.listen()
        with pytest.raises(CommandFailed) as failure:
            other.up()
    assert str(other.port) in failure.value.stderr
    assert "Traceback" not in failure.value.stderr
    left = [p for p in psutil.process_iter(["cmdline"]) if str(other.home) in " ".join(p.info["cmdline"] or [])]
    assert left == []


def test_a_corrupted_archive_is_never_served(stack: Stack, other_digits: Path, digits: Path, sample: bytes) -> None:
    good = stack.push(digits)["version"]
    stack.promote("digits", good)
    from tests.e2e.test_bad_models import GOOD, write_model

    folder = other_digits.parent.parent / f"tampered-{free_port()}"
    bad = stack.push(write_model(folder, GOOD + "\n# tampered\n", name="tampered"), replay=False)
    store = json.loads((stack.home / "stack.json").read_text())["store"]
    bucket, _, prefix = store["url"].removeprefix("s3://").partition("/")
    client = boto3.client(
        "s3",
        endpoint_url=store["endpoint"],
        region_name=store["region"],
        aws_access_key_id=store["access_key"],
        aws_secret_access_key=store["secret_key"],
        config=Config(s3={"addressing_style": "path"}),
    )
    key = "/".join(part for part in (prefix, f"archives/sha256/{bad['digest']}.mar") if part)
    body = client.get_object(Bucket=bucket, Key=key)["Body"].read()
    client.put_object(Bucket=bucket, Key=key, Body=body[:-1] + bytes([body[-1] ^ 1]))
    with pytest.raises(CommandFailed) as failure:
        stack.promote("tampered", bad["version"])
    assert bad["digest"][:12] in failure.value.stdout + failure.value.stderr
    assert answers(stack, sample)
