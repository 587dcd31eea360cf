"""What a handler costs: pictures to tensors beside Pillow and torchvision, ResNet-50 beside a bare loop.

In this process, without a server: what is measured is the code that runs inside a worker.
"""

from __future__ import annotations

import importlib.util
import io
import json
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torchvision
from PIL import Image
from torchvision import transforms

from bench import harness
from handlers import items, preprocessing, runtime
from model_store import archive, spec

PREPARE = Path(__file__).resolve().parents[1] / "examples" / "resnet50" / "prepare.py"
ROUNDS = 5
BATCH = 8
TURN_S = 3.0
WARM_UP_S = 1.0
LARGEST_DIFFERENCE = 0.1
"""Of standardized values: five of 255 levels, which decoders differ by at sharp edges."""


def run(options: harness.Options) -> harness.Report:
    rounds = options.rounds or ROUNDS
    example = _example()
    options.say("staging ResNet-50 with random weights")
    folder = options.work / "resnet50"
    folder.mkdir()
    torch.manual_seed(example.SEED)
    module = torchvision.models.resnet50(weights=None).eval()
    torch.save(module.state_dict(), folder / "resnet50.pth")
    jpeg, png = (_encoded(example.picture(), kind) for kind in ("JPEG", "PNG"))
    (folder / "picture.jpg").write_bytes(jpeg)
    (folder / "model.yaml").write_bytes(PREPARE.with_name("model.yaml").read_bytes())

    figures: list[harness.Comparison | harness.Reading] = []
    for name, data in (("JPEG", jpeg), ("PNG", png)):
        options.say(f"{rounds} rounds of {name} to tensor")
        figures.append(_pictures(name, data, rounds=rounds))
    options.say(f"{rounds} rounds of ResNet-50, batches of {BATCH}")
    figures += _resnet(module, folder, jpeg, rounds=rounds)
    width, height = example.PICTURE
    return harness.Report(
        title=f"Handlers in process, {torch.get_num_threads()} threads, pictures of {width}×{height}",
        figures=figures,
        notes=["The bare loop gets prepared tensors: it decodes nothing, and answers logits instead of labels."],
    )


def _pictures(name: str, data: bytes, *, rounds: int) -> harness.Comparison:
    """One picture to the (1, 3, 224, 224) float32 that ResNet-50 takes, both ways."""
    steps = preprocessing.Preprocessing.from_options({})
    usual = transforms.Compose(
        [
            transforms.Resize(256),
            transforms.CenterCrop(224),
            transforms.ToTensor(),
            transforms.Normalize(preprocessing.IMAGENET_MEAN, preprocessing.IMAGENET_STD),
        ]
    )

    def ours() -> torch.Tensor:
        return steps.normalize(steps.picture(data).unsqueeze(0))

    def baseline() -> torch.Tensor:
        tensor: Any = usual(Image.open(io.BytesIO(data)).convert("RGB"))
        return tensor.unsqueeze(0)

    if (ours() - baseline()).abs().max() > LARGEST_DIFFERENCE:
        raise RuntimeError(f"{name}: the two ways to a tensor differ; a comparison of their speed would say nothing")
    measured = harness.take_turns(rounds, _rate(ours), _rate(baseline))
    return harness.Comparison(
        name=f"{name} to tensor",
        unit="images/s",
        ours=measured[0],
        baseline=measured[1],
        baseline_name="Pillow and torchvision",
    )


def _resnet(module: torch.nn.Module, folder: Path, jpeg: bytes, *, rounds: int) -> list[harness.Comparison]:
    staged = archive.stage(spec.load(folder / "model.yaml")[0], folder / "staged")
    worker = runtime.load(staged.folder, None)
    assert isinstance(worker, runtime.NativeWorker)
    batch = [items.Item(value=jpeg, content_type="image/jpeg")] * BATCH
    prepared = torch.rand(BATCH, 3, 224, 224)

    def answer() -> None:
        for response in worker.answer(batch):
            if response.status != 200:
                raise RuntimeError(f"the handler answered {response.status}: {json.loads(response.body)}")

    @torch.inference_mode()
    def bare() -> None:
        module(prepared)

    ours, baseline = harness.take_turns(rounds, _rate(answer, each=BATCH), _rate(bare, each=BATCH))
    return [
        harness.Comparison(
            name="ResNet-50, JPEG to labels",
            unit="images/s",
            ours=ours,
            baseline=baseline,
            baseline_name="bare eager model in a loop",
        )
    ]


def _rate(work: Callable[[], Any], *, each: int = 1) -> Callable[[], float]:
    """Calls of ``work`` a second, times ``each``, over one turn."""

    def spin(seconds: float) -> float:
        started, count, elapsed = time.perf_counter(), 0, 0.0
        while elapsed < seconds:
            work()
            count += 1
            elapsed = time.perf_counter() - started
        return each * count / elapsed

    def measure() -> float:
        spin(WARM_UP_S)
        return spin(TURN_S)

    return measure


def _encoded(picture: Image.Image, kind: str) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, kind, quality=90)
    return buffer.getvalue()


def _example() -> ModuleType:
    """``examples/resnet50/prepare.py``: the same network and picture that people push."""
    found = importlib.util.spec_from_file_location("resnet50_prepare", PREPARE)
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module
