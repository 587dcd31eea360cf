from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn

from handlers import batches, errors, items
from handlers.base import LoadContext
from handlers.image_classifier import ImageClassifier

MakeItem = Callable[..., items.Item]

NET = """
from torch import nn

def build(classes=3):
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, classes))
"""


def net(classes: int = 3) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, classes))


def png(color: str = "red") -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (10, 10), color).save(stream, "PNG")
    return stream.getvalue()


@pytest.fixture
def loaded(tmp_path: Path) -> Callable[..., batches.Batcher]:
    def load(module: nn.Module | None = None, **options: Any) -> batches.Batcher:
        (tmp_path / "net.py").write_text(NET)
        module = module or net()
        classes = module.state_dict()["2.weight"].shape[0]
        save_file(module.state_dict(), tmp_path / "weights.safetensors")
        handler = ImageClassifier()
        handler.load(
            LoadContext(
                folder=tmp_path,
                model_file=tmp_path / "weights.safetensors",
                architecture="file:net.py:build",
                options={"size": [8, 8], "architecture_args": {"classes": classes}, **options},
            )
        )
        return batches.Batcher(handler=handler, model="m", version=1, max_response_bytes=1 << 20)

    return load


def test_labels_come_best_first_with_scores_that_sum_to_one(
    loaded: Callable[..., batches.Batcher], item: MakeItem, tmp_path: Path
) -> None:
    (tmp_path / "labels.json").write_text('["cat", "dog", "cat"]')
    (response,) = loaded(labels="labels.json").answer([item(png(), "image/png")])
    answer = json.loads(response.body)
    assert [set(each) for each in answer] == [{"label", "score", "index"}] * 3
    assert sum(each["score"] for each in answer) == pytest.approx(1)
    assert answer == sorted(answer, key=lambda each: -each["score"])
    # Two classes of one name are two answers.
    assert sorted(each["label"] for each in answer) == ["cat", "cat", "dog"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("labels.json", '["a", "b", "c"]'),
        ("labels.json", '{"0": "a", "1": "b", "2": "c"}'),
        ("labels.json", '{"0": ["n01", "a"], "1": ["n02", "b"], "2": ["n03", "c"]}'),
        ("labels.txt", "a\nb\nc\n"),
    ],
)
def test_labels_are_read_from_lists_objects_and_lines(
    name: str, text: str, loaded: Callable[..., batches.Batcher], item: MakeItem, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(text)
    (response,) = loaded(labels=name).answer([item(png(), "image/png")])
    assert all(each["label"] == "abc"[each["index"]] for each in json.loads(response.body))


def test_a_model_with_one_class_answers_it(loaded: Callable[..., batches.Batcher], item: MakeItem) -> None:
    (response,) = loaded(net(1), top_k=5).answer([item(png(), "image/png")])
    assert json.loads(response.body) == [{"label": "0", "score": 1.0, "index": 0}]


def test_broken_weights_are_an_error_and_never_nan(loaded: Callable[..., batches.Batcher], item: MakeItem) -> None:
    module = net()
    with torch.no_grad():
        module.state_dict()["2.weight"].fill_(float("nan"))
    (response,) = loaded(module).answer([item(png(), "image/png")])
    assert response.status == 500
    assert "not finite" in json.loads(response.body)["detail"]


def test_one_corrupt_image_among_eight_gets_its_own_400(loaded: Callable[..., batches.Batcher], item: MakeItem) -> None:
    bodies = [png()] * 3 + [png()[:40]] + [png("blue")] * 4
    responses = loaded().answer([item(body, "image/png") for body in bodies])
    assert [response.status for response in responses] == [200, 200, 200, 400, 200, 200, 200, 200]
    assert responses[0].body == responses[1].body != responses[4].body


def test_bytes_json_form_parts_grpc_and_tensors_are_answered_alike(
    loaded: Callable[..., batches.Batcher], item: MakeItem
) -> None:
    import base64

    encoded = base64.b64encode(png()).decode()
    batcher = loaded()
    pixels = np.asarray(Image.open(io.BytesIO(png())))
    tensor = {"name": "image", "datatype": "UINT8", "shape": [1, 10, 10, 3], "data": pixels.ravel().tolist()}
    text = {"name": "image", "datatype": "BYTES", "shape": [1], "data": [encoded]}
    plain = batcher.answer(
        [
            item(png(), "image/png"),
            item(json.dumps({"image": encoded}).encode(), "application/json"),
            items.of_request({"data": png()}, {"Host": "x", "data": {"content-type": "image/png"}}),
            items.of_request({"whatever": png()}, {}),
        ]
    )
    assert len({response.body for response in plain}) == 1
    (several,) = batcher.answer([item(json.dumps({"instances": [{"b64": encoded}] * 2}).encode(), "application/json")])
    assert json.loads(several.body)["predictions"] == [json.loads(plain[0].body)] * 2
    wanted = [each["label"] for each in json.loads(plain[0].body)]
    for given in (tensor, text):
        request = json.dumps({"inputs": [given]}).encode()
        (response,) = batcher.answer([item(request, "application/json", slipway_protocol="oip-v2")])
        outputs = {each["name"]: each for each in json.loads(response.body)["outputs"]}
        assert (outputs["label"]["datatype"], outputs["label"]["shape"]) == ("BYTES", [1, 3])
        assert outputs["label"]["data"] == wanted
        assert outputs["score"]["datatype"] == "FP32"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"topk": 1}, "unknown option topk"),
        ({"top_k": 0}, "top_k"),
        ({"activation": "relu"}, "activation"),
        ({"labels": "../x"}, "labels"),
    ],
)
def test_a_wrong_option_is_named_at_load(
    options: dict[str, Any], words: str, loaded: Callable[..., batches.Batcher]
) -> None:
    with pytest.raises(errors.LoadError, match=words):
        loaded(**options)


def context(folder: Path, name: str, architecture: str | None = "file:net.py:build", **options: Any) -> LoadContext:
    (folder / "net.py").write_text(NET)
    return LoadContext(
        folder=folder, model_file=folder / name, architecture=architecture, options={"size": [8, 8], **options}
    )


def test_weights_in_pth_wrapped_or_parallel_and_torchscript_load(tmp_path: Path) -> None:
    module = net()
    wrapped = {"state_dict": {f"module.{name}": tensor for name, tensor in module.state_dict().items()}}
    torch.save(wrapped, tmp_path / "weights.pth")
    ImageClassifier().load(context(tmp_path, "weights.pth"))
    torch.jit.script(module).save(str(tmp_path / "scripted.pt"))
    ImageClassifier().load(context(tmp_path, "scripted.pt", None))


def test_a_pickle_that_would_run_code_is_refused_and_does_not_run(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "ran",))

    torch.save({"weights": Evil()}, tmp_path / "weights.pth")
    with pytest.raises(errors.LoadError, match="state_dict"):
        ImageClassifier().load(context(tmp_path, "weights.pth"))
    assert not (tmp_path / "ran").exists()


def test_weights_that_do_not_fit_are_told_by_name(tmp_path: Path) -> None:
    save_file(net(7).state_dict(), tmp_path / "weights.safetensors")
    with pytest.raises(errors.LoadError, match=r"(?s)do not fit.*2\.weight"):
        ImageClassifier().load(context(tmp_path, "weights.safetensors"))


def test_weights_without_an_architecture_say_what_to_write(tmp_path: Path) -> None:
    torch.save(net().state_dict(), tmp_path / "weights.pth")
    with pytest.raises(errors.LoadError, match="architecture: torchvision:resnet50"):
        ImageClassifier().load(context(tmp_path, "weights.pth", None))


@pytest.mark.parametrize("builder", ["resnet18", "squeezenet1_1", "googlenet"])
def test_the_class_count_of_a_torchvision_builder_is_read_from_the_weights(builder: str, tmp_path: Path) -> None:
    models = pytest.importorskip("torchvision.models")
    extra = {"init_weights": False} if builder == "googlenet" else {}
    module = models.get_model(builder, weights=None, num_classes=13, **extra)
    # safetensors gives names back in another order than the network has them.
    save_file({name: tensor.contiguous() for name, tensor in module.state_dict().items()}, tmp_path / "w.safetensors")
    handler = ImageClassifier()
    handler.load(context(tmp_path, "w.safetensors", f"torchvision:{builder}", size=[64, 64], top_k=20))
    (answer,) = handler.infer([torch.zeros(3, 64, 64, dtype=torch.uint8)])
    assert len(answer) == 13


@pytest.mark.parametrize(
    ("datatype", "shape"),
    [("FP32", [1, 5, 2, 2]), ("FP32", [1, 3, 4]), ("UINT8", [1, 2, 2, 4]), ("INT64", [1, 3, 2, 2])],
)
def test_a_tensor_of_another_shape_or_type_is_a_400_that_says_what_to_send(
    datatype: str, shape: list[int], loaded: Callable[..., batches.Batcher], item: MakeItem
) -> None:
    tensor = {"name": "image", "datatype": datatype, "shape": shape, "data": [0] * int(np.prod(shape))}
    request = json.dumps({"inputs": [tensor]}).encode()
    (response,) = loaded().answer([item(request, "application/json", slipway_protocol="oip-v2")])
    assert response.status == 400
    assert "(H, W, 3)" in json.loads(response.body)["detail"]


def test_json_that_does_not_parse_is_told_as_such(loaded: Callable[..., batches.Batcher], item: MakeItem) -> None:
    (response,) = loaded().answer([item(b'{"image": ', "application/json")])
    assert response.status == 400
    assert "no JSON" in json.loads(response.body)["detail"]
