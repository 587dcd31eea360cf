from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import yaml

from model_store import spec

Run = Callable[..., subprocess.CompletedProcess[str]]


def test_the_seeds_config_finds_its_weights_beside_it_and_its_builder_by_name(
    tmp_path: Path, examples: Path, run_script: Run
) -> None:
    said = run_script("resnet50/prepare.py", "--out", str(tmp_path)).stdout
    assert "random weights: for load only" in said
    (tmp_path / "serving.yaml").write_bytes((examples / "seed-config" / "serving.yaml").read_bytes())
    (model,) = spec.load(tmp_path / "serving.yaml")
    assert (model.name, model.architecture) == ("resnet50", "torchvision:resnet50")
    assert model.missing_weights is None
    assert model.store_url == "s3://model-bucket/"


def test_without_weights_beside_it_the_seeds_config_asks_the_bucket(tmp_path: Path, examples: Path) -> None:
    (tmp_path / "serving.yaml").write_bytes((examples / "seed-config" / "serving.yaml").read_bytes())
    assert spec.load(tmp_path / "serving.yaml")[0].missing_weights == "resnet50.pth"


def test_the_load_model_says_that_its_answers_mean_nothing(examples: Path) -> None:
    assert "mean nothing" in yaml.safe_load((examples / "resnet50" / "model.yaml").read_text())["description"]
