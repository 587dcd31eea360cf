"""Models that misbehave: each is reported with its own words, and what served before goes on serving."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.support.stack import CommandFailed, Stack
from tests.support.waiting import wait_until

pytestmark = pytest.mark.e2e

GOOD = """
from handlers import base

class Echo(base.Handler):
    def decode(self, item):
        return item.text()

    def infer(self, batch):
        return [{"text": text} for text in batch]
"""

RAISES_AT_LOAD = GOOD.replace(
    "    def decode",
    '    def load(self, context):\n        raise RuntimeError("the weights are from Mars")\n\n    def decode',
)

RAISES_AT_PREDICT = GOOD.replace('return [{"text"', 'raise ValueError("no prediction today")\n        return [{"text"')

TOO_FEW_ANSWERS = GOOD.replace("for text in batch]", "for text in batch[1:]]")

PRINTS_MEGABYTES = GOOD.replace(
    '        return [{"text"',
    '        print("x" * 200 + "\\n", end="" ) or [print("y" * 1000) for _ in range(5000)]\n        return [{"text"',
)

HANGS = GOOD.replace(
    '        return [{"text"',
    '        if "hang" in batch:\n            __import__("threading").Event().wait()\n        return [{"text"',
)


def write_model(folder: Path, handler: str, *, name: str, extra: dict[str, object] | None = None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "handler.py").write_text(handler)
    model = {"name": name, "handler": "handler.py", "serving": {"batch_size": 4, "response_timeout_s": 5}} | (
        extra or {}
    )
    path = folder / "model.yaml"
    path.write_text(json.dumps(model))
    return path


def publish(stack: Stack, path: Path) -> int:
    # What these models do wrong is for the replica to meet, so the publisher's machine does not try them first.
    pushed = stack.push(path, replay=False)
    stack.promote(pushed["model"], pushed["version"])
    return int(pushed["version"])


def ask(stack: Stack, model: str, text: str = "hello", timeout_s: float = 60) -> httpx.Response:
    return httpx.post(
        f"{stack.gateway}/predictions/{model}",
        content=text.encode(),
        headers={"content-type": "text/plain"},
        timeout=timeout_s,
    )


def test_a_version_that_cannot_load_is_reported_with_its_traceback_and_the_old_one_serves(
    stack: Stack, tmp_path: Path
) -> None:
    good = publish(stack, write_model(tmp_path / "good", GOOD, name="mars"))
    bad = stack.push(write_model(tmp_path / "bad", RAISES_AT_LOAD, name="mars"), replay=False)
    with pytest.raises(CommandFailed) as failure:
        stack.promote("mars", bad["version"])
    said = failure.value.stdout + failure.value.stderr
    assert "the weights are from Mars" in said
    answer = ask(stack, "mars")
    assert answer.status_code == 200
    assert answer.headers["slipway-model-version"] == str(good)


def test_a_model_that_does_not_load_is_refused_before_it_is_pushed(stack: Stack, tmp_path: Path) -> None:
    with pytest.raises(CommandFailed) as failure:
        stack.push(write_model(tmp_path, RAISES_AT_LOAD, name="venus"))
    assert "the weights are from Mars" in failure.value.stderr
    assert stack.run("describe", "venus", check=False).returncode == 3


def test_a_version_whose_requirements_are_missing_is_refused_with_their_names(stack: Stack, tmp_path: Path) -> None:
    path = write_model(tmp_path, GOOD, name="needy", extra={"requirements": ["a-package-that-is-nowhere>=3"]})
    with pytest.raises(CommandFailed) as failure:
        publish(stack, path)
    assert "a-package-that-is-nowhere" in failure.value.stdout + failure.value.stderr


def test_a_handler_that_raises_at_predict_answers_500_and_stays_up(stack: Stack, tmp_path: Path) -> None:
    publish(stack, write_model(tmp_path, RAISES_AT_PREDICT, name="raises"))
    for _ in range(3):
        answer = ask(stack, "raises")
        assert answer.status_code == 500
        assert "no prediction today" in answer.text


def test_a_handler_that_returns_too_few_answers_gets_500_that_names_both_numbers(stack: Stack, tmp_path: Path) -> None:
    publish(stack, write_model(tmp_path, TOO_FEW_ANSWERS, name="few"))
    answer = ask(stack, "few")
    assert answer.status_code == 500
    assert "0" in answer.json()["detail"] and "1" in answer.json()["detail"]


def test_a_handler_that_prints_megabytes_still_answers(stack: Stack, tmp_path: Path) -> None:
    publish(stack, write_model(tmp_path, PRINTS_MEGABYTES, name="chatty"))
    for _ in range(3):
        assert ask(stack, "chatty").json() == {"text": "hello"}


def test_a_handler_that_hangs_times_out_and_then_answers_again(stack: Stack, tmp_path: Path) -> None:
    publish(stack, write_model(tmp_path, HANGS, name="hangs"))
    assert ask(stack, "hangs").status_code == 200
    stuck = ask(stack, "hangs", "hang")
    assert stuck.status_code in (500, 503, 504), stuck.text

    def answers() -> bool:
        return ask(stack, "hangs").status_code == 200

    wait_until(answers, timeout_s=90, what="the model to answer after its worker hung")


def test_one_corrupt_image_among_eight_gets_its_own_400(stack: Stack, digits: Path) -> None:
    publish(stack, digits)
    sample = (digits.parent / "samples" / "3.png").read_bytes()
    images = [sample] * 3 + [sample[:40]] + [sample] * 4

    def post(image: bytes) -> httpx.Response:
        return httpx.post(
            f"{stack.gateway}/predictions/digits", content=image, headers={"content-type": "image/png"}, timeout=60
        )

    with ThreadPoolExecutor(max_workers=8) as pool:
        answers = list(pool.map(post, images))
    assert [answer.status_code for answer in answers] == [200, 200, 200, 400, 200, 200, 200, 200]
    assert answers[3].json()["type"].startswith("urn:slipway:error:")


def test_unknown_models_versions_and_stages_get_404_that_names_them(stack: Stack, digits: Path) -> None:
    publish(stack, digits)
    unknown_model = ask(stack, "no-such-model")
    assert unknown_model.status_code == 404
    assert "no-such-model" in unknown_model.text
    unknown_version = httpx.post(f"{stack.gateway}/predictions/digits/999", content=b"x")
    assert unknown_version.status_code == 404
    unknown_stage = httpx.post(
        f"{stack.gateway}/predictions/digits", content=b"x", headers={"slipway-stage": "no-such-stage"}
    )
    assert unknown_stage.status_code == 404
    for arguments in (("promote", "no-such-model", "1"), ("promote", "digits", "999"), ("describe", "no-such-model")):
        assert stack.run(*arguments, check=False).returncode not in (0, 1, 2)


def test_management_paths_never_pass_the_gateway(stack: Stack, digits: Path) -> None:
    publish(stack, digits)
    for method, path in (
        ("POST", "/workflows"), ("GET", "/models"), ("POST", "/models"), ("POST", "/explanations/digits"),
        ("PUT", "/models/digits"), ("GET", "/metrics"), ("OPTIONS", "/"),
    ):  # fmt: skip
        answer = httpx.request(method, f"{stack.gateway}{path}")
        assert answer.status_code in (404, 405), f"{method} {path} → {answer.status_code} {answer.text}"
