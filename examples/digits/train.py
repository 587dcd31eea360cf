"""Train the digit classifier and lay out everything that ``slipway push`` needs, beside ``model.yaml``.

The same arguments on the same machine give the same bytes, so pushing twice is one version; another seed is another
version. The held-out images are the same for every seed: the accuracies of two versions can be compared.

Source: E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI, 1998, as shipped with scikit-learn
(1,797 images of 8×8, ink 0 to 16 on an empty ground).
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path

import net
import numpy
import safetensors.torch
import sklearn.datasets
import sklearn.model_selection
import torch
import yaml
from PIL import Image
from torch import nn

HERE = Path(__file__).resolve().parent
COPIED = ("model.yaml", "net.py", "labels.json")
"""What another output folder needs of this one."""

WEIGHTS = "digits.safetensors"
HELD_OUT = 0.2
SPLIT_SEED = 0
MIN_ACCURACY = 0.97
BATCH = 64
PEAK_RATE = 0.01
THREADS = 1
"""Sums of floats depend on how threads share them: one thread, one result."""


def main() -> int:
    arguments = _parse()
    out: Path = arguments.out
    torch.set_num_threads(THREADS)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(arguments.seed)

    images, labels = _digits()
    train, held_out = sklearn.model_selection.train_test_split(
        numpy.arange(len(labels)), test_size=HELD_OUT, random_state=SPLIT_SEED, stratify=labels.numpy()
    )
    inputs = net.standardize(images, **_statistics())
    model = _fit(inputs[train], labels[train], epochs=arguments.epochs)
    right = _predict(model, inputs[held_out]) == labels[held_out]
    accuracy = right.float().mean().item()

    out.mkdir(parents=True, exist_ok=True)
    if out != HERE:
        for name in COPIED:
            shutil.copyfile(HERE / name, out / name)
    safetensors.torch.save_file(model.state_dict(), out / WEIGHTS)
    metrics = {
        "held_out_accuracy": round(accuracy, 4),
        "held_out_images": float(len(held_out)),
        "epochs": float(arguments.epochs),
        "seed": float(arguments.seed),
    }
    (out / "metrics.json").write_text(json.dumps(metrics, indent=1) + "\n")
    # One image of each digit that the model has not been trained on, and that it reads.
    _save_samples(images[held_out][right], labels[held_out][right], out / "samples")

    print(f"held-out accuracy {accuracy:.4f} ({right.sum()} of {len(held_out)} images); wrote {out / WEIGHTS}")
    if accuracy < MIN_ACCURACY:
        print(f"that is below {MIN_ACCURACY}: train for more epochs before you push it", file=sys.stderr)
        return 1
    return 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a small classifier of handwritten digits.")
    parser.add_argument("--out", type=lambda path: Path(path).resolve(), default=HERE, help="folder to write to")
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--seed", type=int, default=1, help="of the weights and of the order of images")
    return parser.parse_args()


def _digits() -> tuple[torch.Tensor, torch.Tensor]:
    """Images (N, 8, 8) uint8, 0 to 255, exactly as a PNG holds them, and labels (N,) int64."""
    digits = sklearn.datasets.load_digits()
    images = torch.from_numpy(digits.images * 255 / 16).round().to(torch.uint8)
    return images, torch.from_numpy(digits.target)


def _statistics() -> dict[str, float]:
    """Mean and standard deviation as the handler will use them: model.yaml is the one place that holds them."""
    options = yaml.safe_load((HERE / "model.yaml").read_text())["options"]
    return {"mean": options["mean"][0], "std": options["std"][0]}


def _fit(inputs: torch.Tensor, labels: torch.Tensor, *, epochs: int) -> nn.Module:
    model = net.build().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_RATE, weight_decay=1e-2)
    steps = epochs * -(-len(labels) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=PEAK_RATE, total_steps=steps)
    for _ in range(epochs):
        for batch in torch.randperm(len(labels)).split(BATCH):
            loss = nn.functional.cross_entropy(model(inputs[batch]), labels[batch], label_smoothing=0.05)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    return model.eval()


@torch.inference_mode()
def _predict(model: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    return model(inputs).argmax(dim=1)


def _save_samples(images: torch.Tensor, labels: torch.Tensor, folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    for digit in range(net.CLASSES):
        first = int((labels == digit).nonzero()[0])
        Image.fromarray(images[first].numpy()).save(folder / f"{digit}.png")


if __name__ == "__main__":
    sys.exit(main())
