"""From decoded pixels to the tensor that a classifier was trained on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from torch.nn import functional

from handlers import errors, images

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
"""Mean and standard deviation of the ImageNet training set, of channels scaled to 0 … 1.

Source: as published with torchvision's weights.
"""

OPTIONS = frozenset({"size", "resize", "crop", "interpolation", "mean", "std", "color", "max_pixels"})

MAX_ASPECT = 16
"""Beyond this, the ends of the longer side are cut before resizing."""

Interpolation = Literal["bilinear", "bicubic", "nearest"]


@dataclass(frozen=True, kw_only=True)
class Preprocessing:
    """The steps between a picture and the model, as model.yaml's options name them.

    Attributes:
        size: (height, width) to resize to, whatever the picture's shape; ``None`` uses ``resize`` and ``crop``.
        resize: length of the shorter side after resizing.
        crop: side of the centered square that is kept; ``None`` keeps all.
        mean: for each channel, of values scaled to 0 … 1; one number means gray pictures.
        std: likewise.
    """

    size: tuple[int, int] | None = None
    resize: int | None = 256
    crop: int | None = 224
    interpolation: Interpolation = "bilinear"
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD
    mode: images.Mode = "RGB"
    max_pixels: int = images.MAX_PIXELS

    @classmethod
    def from_options(cls, options: dict[str, Any]) -> Preprocessing:
        """Read ``size resize crop interpolation mean std color max_pixels``.

        Raises:
            LoadError: names the option that is wrong.
        """
        mean = _numbers(options, "mean", IMAGENET_MEAN)
        std = _numbers(options, "std", IMAGENET_STD if "mean" not in options else (1.0,) * len(mean))
        mode = options.get("color", "L" if len(mean) == 1 else "RGB")
        if mode not in ("RGB", "L"):
            raise errors.LoadError(f"option color is {mode!r}; use RGB or L (gray)")
        channels = 1 if mode == "L" else 3
        if not len(mean) == len(std) == channels or min(std) <= 0:
            raise errors.LoadError(
                f"options mean and std need {channels} numbers each for color {mode}, std above 0; got {mean} and {std}"
            )
        interpolation = options.get("interpolation", "bilinear")
        if interpolation not in ("bilinear", "bicubic", "nearest"):
            raise errors.LoadError(f"option interpolation is {interpolation!r}; use bilinear, bicubic or nearest")
        size = options.get("size")
        if size is not None:
            pair = [size, size] if isinstance(size, int) else size
            if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(n, int) and n > 0 for n in pair):
                raise errors.LoadError(f"option size is {size!r}; write [height, width] in pixels")
            size = cast("tuple[int, int]", tuple(pair))
        return cls(
            size=size,
            resize=_positive(options, "resize", cls.resize),
            crop=_positive(options, "crop", cls.crop),
            interpolation=interpolation,
            mean=mean,
            std=std,
            mode=mode,
            max_pixels=_positive(options, "max_pixels", cls.max_pixels) or images.MAX_PIXELS,
        )

    @property
    def at_least(self) -> int:
        """The side that a JPEG's own down-scaling must leave: twice the target, so that it cannot be seen."""
        target = max(self.size) if self.size is not None else self.resize
        return 0 if target is None else 2 * target

    def picture(self, data: bytes | bytearray) -> torch.Tensor:
        """Decode one file and bring it to the model's size.

        Returns:
            (C, H, W) uint8, a view on rows of pixels (channels last in memory).

        Raises:
            InvalidInput, UnsupportedMedia, TooLarge: see :func:`handlers.images.decode`.
        """
        pixels = images.decode(data, mode=self.mode, at_least=self.at_least, max_pixels=self.max_pixels)
        return self.fit(pixels)

    def fit(self, pixels: Any) -> torch.Tensor:
        """Resize and crop.

        Args:
            pixels: (H, W) or (H, W, C) uint8 array.

        Returns:
            (C, H', W') uint8.
        """
        if not pixels.flags.writeable:
            pixels = pixels.copy()
        tensor = torch.from_numpy(pixels)
        image = tensor.unsqueeze(0) if tensor.ndim == 2 else tensor.permute(2, 0, 1)
        if self.size is not None:
            return self._resized(image, self.size)
        if self.resize is not None:
            image = self._without_ends(image)
            height, width = image.shape[1:]
            short = min(height, width)
            scaled = (
                (self.resize, max(1, int(self.resize * width / short)))
                if height <= width
                else (max(1, int(self.resize * height / short)), self.resize)
            )
            image = self._resized(image, scaled)
        return image if self.crop is None else _centered(image, (self.crop, self.crop))

    def normalize(self, batch: torch.Tensor) -> torch.Tensor:
        """Scale to 0 … 1 and standardize.

        Args:
            batch: (N, C, H, W) uint8, on the model's device.

        Returns:
            (N, C, H, W) float32, channels last in memory.
        """
        mean = torch.tensor(self.mean, device=batch.device).mul_(255).view(1, -1, 1, 1)
        scale = torch.tensor(self.std, device=batch.device).mul_(255).reciprocal_().view(1, -1, 1, 1)
        floats = batch.to(dtype=torch.float32, memory_format=torch.channels_last)
        return floats.sub_(mean).mul_(scale)

    def _without_ends(self, image: torch.Tensor) -> torch.Tensor:
        """Cut what cropping would cut anyway: a picture of 20,000 × 1 would be scaled to five million × 256."""
        height, width = image.shape[1:]
        kept = MAX_ASPECT * min(height, width)
        if max(height, width) <= kept:
            return image
        if self.crop is None or self.resize is None or self.crop > self.resize * MAX_ASPECT // 2:
            raise errors.InvalidInput(
                f"the image is {width} × {height} pixels; its longer side may be {MAX_ASPECT} times its shorter",
                limit_aspect=MAX_ASPECT,
            )
        return _centered(image, (min(height, kept), min(width, kept)))

    def _resized(self, image: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
        if tuple(image.shape[1:]) == size:
            return image
        smooth = self.interpolation != "nearest"
        # uint8 with antialias runs in integers and agrees with Pillow, which trained most models.
        return functional.interpolate(
            image.unsqueeze(0),
            size=size,
            mode=self.interpolation,
            antialias=smooth,
            align_corners=False if smooth else None,
        )[0]


def _centered(image: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    height, width = image.shape[1:]
    tall, wide = size
    if height < tall or width < wide:
        vertical, horizontal = max(0, tall - height), max(0, wide - width)
        image = functional.pad(
            image, (horizontal // 2, horizontal - horizontal // 2, vertical // 2, vertical - vertical // 2)
        )
        height, width = image.shape[1:]
    top, left = round((height - tall) / 2), round((width - wide) / 2)
    return image[:, top : top + tall, left : left + wide]


def _numbers(options: dict[str, Any], name: str, default: tuple[float, ...]) -> tuple[float, ...]:
    value = options.get(name)
    if value is None:
        return default
    given: list[Any] = value if isinstance(value, list) else [value]
    if not given or not all(isinstance(number, (int, float)) for number in given):
        raise errors.LoadError(f"option {name} is {value!r}; write a list of numbers, one for each channel")
    return tuple(float(number) for number in given)


def _positive(options: dict[str, Any], name: str, default: int | None) -> int | None:
    value = options.get(name, default)
    if value is not None and (not isinstance(value, int) or value < 1):
        raise errors.LoadError(f"option {name} is {value!r}; write a whole number of pixels, or null")
    return value
