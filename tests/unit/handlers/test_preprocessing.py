from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from handlers import errors
from handlers.preprocessing import Preprocessing


def png(width: int, height: int) -> bytes:
    down, across = np.mgrid[0:height, 0:width]
    pixels = np.stack([across * 255 // width, down * 255 // height, across * 0 + 90], axis=-1).astype(np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    return stream.getvalue()


@pytest.mark.parametrize(("width", "height"), [(640, 427), (427, 640), (300, 300), (100, 80)])
def test_the_default_is_what_torchvision_trained_with(width: int, height: int) -> None:
    transforms = pytest.importorskip("torchvision.transforms.v2.functional")
    data = png(width, height)
    image = Image.open(io.BytesIO(data)).convert("RGB")
    wanted = transforms.pil_to_tensor(transforms.center_crop(transforms.resize(image, [256]), [224, 224]))
    preprocessing = Preprocessing.from_options({})
    actual = preprocessing.picture(data)
    assert actual.shape == (3, 224, 224)
    assert (actual.int() - wanted.int()).abs().max() <= 2
    normalized = preprocessing.normalize(actual.unsqueeze(0))
    reference = transforms.normalize(actual.float().div(255), [0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
    torch.testing.assert_close(normalized[0], reference)
    assert normalized.is_contiguous(memory_format=torch.channels_last)


def test_a_size_is_resized_to_whatever_the_shape() -> None:
    assert Preprocessing.from_options({"size": [20, 30]}).picture(png(64, 48)).shape == (3, 20, 30)


def test_one_mean_makes_pictures_gray() -> None:
    preprocessing = Preprocessing.from_options({"size": [8, 8], "mean": [0.3], "std": [0.4]})
    assert preprocessing.picture(png(8, 8)).shape == (1, 8, 8)
    assert preprocessing.normalize(torch.full((1, 1, 8, 8), 255, dtype=torch.uint8)).flatten()[0] == pytest.approx(1.75)


@pytest.mark.parametrize(("width", "height"), [(20_000, 1), (1, 20_000), (30_000, 40)])
def test_a_very_long_picture_is_answered_without_scaling_its_ends(width: int, height: int) -> None:
    preprocessing = Preprocessing.from_options({})
    largest: list[int] = []
    resized = preprocessing._resized  # pyright: ignore[reportPrivateUsage]

    def watched(image: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
        largest.append(size[0] * size[1])
        return resized(image, size)

    object.__setattr__(preprocessing, "_resized", watched)
    assert preprocessing.picture(png(width, height)).shape == (3, 224, 224)
    assert max(largest) <= 256 * 256 * 16


def test_a_very_long_picture_that_would_not_be_cropped_is_refused() -> None:
    with pytest.raises(errors.InvalidInput, match="16 times"):
        Preprocessing.from_options({"crop": None}).picture(png(2000, 4))


@pytest.mark.parametrize(
    "options",
    [
        {"mean": [0.5, 0.5]},
        {"std": [0.0, 1.0, 1.0]},
        {"mean": "gray"},
        {"color": "CMYK"},
        {"size": [0, 8]},
        {"size": "8x8"},
        {"interpolation": "lanczos"},
        {"resize": -1},
        {"crop": 1.5},
    ],
)
def test_a_wrong_option_is_named_at_load(options: dict[str, Any]) -> None:
    with pytest.raises(errors.LoadError, match=next(iter(options))):
        Preprocessing.from_options(options)
