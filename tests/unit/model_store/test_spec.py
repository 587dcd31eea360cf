"""model.yaml and the seed's config: what they become, and how their mistakes are told."""

from __future__ import annotations

from pathlib import Path

import pytest

from model_store import errors, spec


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "home"
    (home / "bert" / "sub").mkdir(parents=True)
    for name in ("resnet50.pth", "digits.safetensors", "handler.py", "net.py", "7.png", "bert/a.json", "bert/sub/b"):
        (home / name).write_bytes(b"x")
    return home


def load(home: Path, text: str, **options: bool) -> list[spec.Spec]:
    (home / "model.yaml").write_text(text)
    return spec.load(home / "model.yaml", **options)


def refusal(home: Path, text: str) -> errors.SpecError:
    with pytest.raises(errors.SpecError) as caught:
        load(home, text)
    assert str(home / "model.yaml") in str(caught.value)
    return caught.value


SEED = """
model_store: s3://model-bucket/
models:
  resnet50: {model_file: resnet50.pth, handler: image_classifier}
"""


def test_the_seed_config_as_written_becomes_a_torchvision_model(home: Path) -> None:
    [model] = load(home, SEED)
    assert model.name == "resnet50"
    assert model.handler == "image_classifier"
    assert model.architecture == "torchvision:resnet50"
    assert model.store_url == "s3://model-bucket/"
    assert model.missing_weights is None
    assert dict(model.files) == {"resnet50.pth": home / "resnet50.pth"}


def test_weights_that_are_not_beside_a_seed_config_are_looked_for_in_its_bucket(home: Path, tmp_path: Path) -> None:
    (home / "resnet50.pth").unlink()
    [model] = load(home, SEED)
    assert model.missing_weights == "resnet50.pth"
    assert model.architecture == "torchvision:resnet50"
    fetched = spec.with_weights(model, tmp_path / "fetched")
    assert fetched.missing_weights is None
    assert fetched.files == {"resnet50.pth": tmp_path / "fetched"}


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("resnet50.pth", "torchvision:resnet50"),
        ("weights/vit_b_16.safetensors", "torchvision:vit_b_16"),
        ("wide_resnet50_2.pt", "torchvision:wide_resnet50_2"),
        ("my-resnet50.pth", None),
        ("digits.pth", None),
        ("resnet50", None),
    ],
)
def test_a_builder_is_told_by_the_files_stem(file: str, expected: str | None) -> None:
    assert spec.torchvision_builder(file) == expected


def test_every_torchvision_classifier_is_recognized() -> None:
    models = pytest.importorskip("torchvision.models")
    names = models.list_models(module=models)
    assert [name for name in names if spec.torchvision_builder(f"{name}.pth") is None] == []


def test_a_full_model_yaml_is_understood(home: Path) -> None:
    (home / "expected.json").write_text('{"label": 7}')
    (home / "metrics.json").write_text('{"held_out_accuracy": 0.97}')
    (home / "requirements.txt").write_text("# needed\nnumpy>=2  # arrays\n\npillow\n")
    [model] = load(
        home,
        """
name: digits
handler: handler.py
model_file: digits.safetensors
architecture: net.py:build
files: [bert/a.json]
requirements: requirements.txt
options: {top_k: 3}
pool: gpu-a10g
serving: {batch_size: 4, workers: 2}
signature: {inputs: [{name: image, datatype: BYTES, shape: [1]}]}
golden: [{input: 7.png, expected: expected.json, tolerance: 0.01}]
metrics: metrics.json
""",
    )
    assert model.handler == "file:handler.py"
    assert model.architecture == "file:net.py:build"
    assert set(model.files) == {"handler.py", "digits.safetensors", "net.py", "bert/a.json", "golden/7.png"}
    assert model.requirements == ("numpy>=2", "pillow")
    assert model.golden == (
        spec.Golden(file="golden/7.png", content_type="image/png", expected={"label": 7}, tolerance=0.01),
    )
    assert model.metrics == {"held_out_accuracy": 0.97}
    assert (model.serving.batch_size, model.pool) == (4, "gpu-a10g")
    assert model.config().options == {"top_k": 3}


def test_a_folder_of_weights_is_taken_whole_without_hidden_files(home: Path) -> None:
    (home / "bert" / ".git").mkdir()
    (home / "bert" / ".git" / "config").touch()
    (home / "bert" / "__pycache__").mkdir()
    (home / "bert" / "__pycache__" / "x.pyc").touch()
    [model] = load(home, "{name: bert, handler: transformer, model_file: bert/}")
    assert model.model_file == "bert"
    assert set(model.files) == {"bert/a.json", "bert/sub/b"}


def test_numbers_may_be_written_as_people_write_them(home: Path) -> None:
    [model] = load(
        home,
        "{name: a, handler: transformer, golden: [{input: 7.png, tolerance: 1e-4}], metrics: {n: 3},"
        " options: {rate: -2E3}}",
    )
    assert model.golden[0].tolerance == 1e-4
    assert model.metrics == {"n": 3.0}
    assert model.options == {"rate": -2000.0}


@pytest.mark.parametrize(
    ("text", "field", "says"),
    [
        ("[]", "", "no mapping"),
        ("name: [", "", "is not YAML"),
        ("{name: a, name: b, handler: transformer}", "", "'name' stands there twice"),
        ("{name: a}", "handler", "add it"),
        ("{name: A b, handler: transformer}", "name", "lower-case"),
        ("{name: a, handler: transformer, modelfile: x}", "modelfile", "spelling"),
        ("{name: a, handler: transfomer}", "handler", "image_classifier, transformer"),
        ("{name: a, handler: nowhere.py}", "handler", "no file"),
        ("{name: a, handler: transformer, model_file: nowhere}", "model_file", "no file or folder"),
        ("{name: a, handler: transformer, model_file: ../home/7.png/../..}", "model_file", "leads out"),
        ("{name: a, handler: transformer, files: [/etc/hostname]}", "files.0", "leads out"),
        ("{name: a, handler: transformer, files: {slipway.json: 7.png}}", "files.slipway.json", "written by Slipway"),
        ("{name: a, handler: transformer, files: {handlers.py: net.py}}", "files.handlers.py", "hide the Python"),
        ("{name: a, handler: transformer, files: {../x: 7.png}}", "files.../x", "'..'"),
        ("{name: a, handler: transformer, files: {net.py: 7.png, x: net.py}, architecture: net.py:build}", "", "both"),
        ("{name: a, handler: transformer, architecture: resnet50}", "architecture", "torchvision:BUILDER"),
        ("{name: a, handler: transformer, requirements: [--index-url x]}", "requirements", "do not travel"),
        ("{name: a, handler: transformer, requirements: ['x @ https://y/z.whl']}", "requirements", "do not travel"),
        ("{name: a, handler: transformer, serving: {batch_size: 0}}", "serving.batch_size", "greater than"),
        ("{name: a, handler: transformer, golden: [{input: nope.png}]}", "golden.0.input", "no file"),
        ("{name: a, handler: transformer, metrics: 7.png}", "metrics", "not JSON"),
        ("{model_store: 'https://x', models: {a: {handler: transformer}}}", "model_store", "s3://"),
        ("{model_store: 's3://b', models: {}}", "models", "at least 1"),
        ("{models: {a: {handler: transformer}}}", "model_store", "add it"),
    ],
)
def test_each_mistake_is_told_with_its_field_and_its_fix(home: Path, text: str, field: str, says: str) -> None:
    error = refusal(home, text)
    assert field in error.field
    assert says in str(error)


def test_a_link_out_of_the_folder_is_refused_unless_allowed(home: Path, tmp_path: Path) -> None:
    (tmp_path / "secret.json").write_text("{}")
    (home / "bert" / "c.json").symlink_to(tmp_path / "secret.json")
    text = "{name: bert, handler: transformer, model_file: bert}"
    assert "leads out" in str(refusal(home, text))
    [model] = load(home, text, allow_outside=True)
    assert "bert/c.json" in model.files


def test_a_circle_of_links_is_told_with_its_field(home: Path) -> None:
    (home / "loop").symlink_to("loop")
    told = str(refusal(home, "{name: bert, handler: transformer, model_file: loop}"))
    assert "model_file" in told
    assert "cannot be followed" in told


def test_a_missing_file_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(errors.SpecError, match="no such file"):
        spec.load(tmp_path / "model.yaml")
