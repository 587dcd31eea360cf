from __future__ import annotations

import io
import struct
import zlib
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps

from handlers import errors, images

HEIGHT, WIDTH = 48, 64


def encoded(image: Image.Image, form: str, **options: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, form, **options)
    return stream.getvalue()


@pytest.fixture(scope="module")
def picture() -> Image.Image:
    """Smooth, and different in every corner."""
    down, across = np.mgrid[0:HEIGHT, 0:WIDTH]
    return Image.fromarray(np.stack([across * 4, down * 5, 255 - across * 2], axis=-1).astype(np.uint8))


def assert_alike(actual: Any, expected: Image.Image, *, tolerance: float) -> None:
    wanted = np.asarray(expected.convert("RGB"), dtype=float)
    assert actual.shape == wanted.shape
    assert actual.dtype == np.uint8
    assert float(np.abs(actual - wanted).mean()) <= tolerance


@pytest.mark.parametrize(
    ("mode", "form", "tolerance"),
    [
        ("RGB", "JPEG", 3), ("RGB", "PNG", 0), ("RGB", "WEBP", 4), ("P", "GIF", 20), ("RGB", "BMP", 0),
        ("RGB", "TIFF", 0), ("L", "PNG", 0), ("L", "JPEG", 3), ("LA", "PNG", 0), ("RGBA", "PNG", 0), ("P", "PNG", 20),
        ("1", "PNG", 0), ("CMYK", "JPEG", 6),
    ],
)  # fmt: skip
def test_every_format_and_mode_becomes_rgb(picture: Image.Image, mode: str, form: str, tolerance: float) -> None:
    source = picture.convert(mode)
    assert_alike(images.decode(encoded(source, form)), source, tolerance=tolerance)


def test_sixteen_bits_become_eight_without_going_white() -> None:
    ramp = (np.arange(HEIGHT * WIDTH).reshape(HEIGHT, WIDTH) * 20).astype(np.uint16)
    pixels = images.decode(encoded(Image.fromarray(ramp), "PNG"), mode="L")
    assert np.abs(pixels.astype(int) - ramp // 257).max() <= 1


def test_transparent_pixels_are_seen_on_white() -> None:
    clear = Image.new("RGBA", (4, 4), (0, 0, 0, 0))
    assert (images.decode(encoded(clear, "PNG")) == 255).all()


def test_the_first_frame_of_an_animation_is_taken(picture: Image.Image) -> None:
    frames = [picture.convert("P"), Image.new("P", picture.size)]
    data = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert_alike(images.decode(data), picture.convert("P"), tolerance=20)


@pytest.mark.parametrize("form", ["JPEG", "PNG"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_undone_as_pillow_does(picture: Image.Image, form: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(picture, form, exif=exif)
    upright = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    assert_alike(images.decode(data), upright, tolerance=3)


def test_a_jpeg_may_be_decoded_smaller_but_not_below_what_is_asked(picture: Image.Image) -> None:
    data = encoded(picture.resize((640, 480)), "JPEG")
    assert images.decode(data, at_least=100).shape == (120, 160, 3)
    assert images.decode(data, at_least=0).shape == (480, 640, 3)


def test_a_film_appended_to_a_jpeg_does_no_harm(picture: Image.Image) -> None:
    data = encoded(picture, "JPEG")
    assert_alike(images.decode(data + b"\x00mp4" * 5000), picture, tolerance=3)


def test_a_jpeg_that_is_cut_off_is_refused_even_when_its_thumbnail_is_whole(picture: Image.Image) -> None:
    thumbnail = encoded(picture.resize((16, 12)), "JPEG")
    data = encoded(picture.resize((640, 480)), "JPEG", exif=b"Exif\x00\x00" + thumbnail)
    with pytest.raises(errors.InvalidInput, match="cut off"):
        images.decode(data[: len(data) // 2])


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP", "GIF"])
@pytest.mark.parametrize("kept", [0.02, 0.5])
def test_a_cut_off_image_is_a_400(picture: Image.Image, form: str, kept: float) -> None:
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (HEIGHT, WIDTH, 3), dtype=np.uint8))
    data = encoded(noise, form)
    with pytest.raises(errors.InvalidInput):
        images.decode(data[: max(8, int(len(data) * kept))])


def test_an_empty_body_is_a_400_and_no_image_a_415() -> None:
    with pytest.raises(errors.InvalidInput, match="empty"):
        images.decode(b"")
    with pytest.raises(errors.UnsupportedMedia, match="JPEG, PNG"):
        images.decode(b"hello, world")


@pytest.mark.parametrize("side", [8_000, 20_000])
def test_a_decompression_bomb_is_refused_by_its_header_with_the_limit(side: int) -> None:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    bomb = (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")
    )
    with pytest.raises(errors.TooLarge, match="50000000") as refusal:
        images.decode(bomb)
    assert refusal.value.extras["limit_pixels"] == 50_000_000


def test_one_pixel_is_an_image() -> None:
    assert images.decode(encoded(Image.new("RGB", (1, 1), "red"), "PNG")).tolist() == [[[255, 0, 0]]]
