"""Write a ResNet-50 with random, seeded weights and a picture to send: for load only, its answers mean nothing."""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import torch
import torchvision
from PIL import Image

HERE = Path(__file__).resolve().parent
SEED = 0
PICTURE = (640, 427)
"""Width and height: the size of a common photograph on the web."""


def main() -> None:
    parser = argparse.ArgumentParser(description="Write resnet50.pth, randomly initialized, and picture.jpg.")
    parser.add_argument("--out", type=Path, default=HERE, help="folder to write to")
    out: Path = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(SEED)
    torch.save(torchvision.models.resnet50(weights=None).state_dict(), out / "resnet50.pth")
    picture().save(out / "picture.jpg", quality=90)
    print(f"wrote {out / 'resnet50.pth'} (random weights: for load only)")


def picture() -> Image.Image:
    """Waves of colour: compresses like a photograph, and holds nobody's rights."""
    width, height = PICTURE
    y, x = torch.meshgrid(torch.linspace(0, 1, height), torch.linspace(0, 1, width), indexing="ij")
    generator = torch.Generator().manual_seed(SEED)
    waves = torch.zeros(height, width, 3)
    for power in range(2, 9):
        frequency = 2.0**power
        for channel in range(3):
            angle, phase = (2 * math.pi * torch.rand(2, generator=generator)).tolist()
            along = x * math.cos(angle) + y * math.sin(angle)
            waves[..., channel] += torch.sin(frequency * along + phase) / power
    pixels = (waves - waves.min()) / (waves.max() - waves.min()) * 255
    return Image.fromarray(pixels.round().to(torch.uint8).numpy())


if __name__ == "__main__":
    main()
