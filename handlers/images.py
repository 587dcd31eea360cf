"""Image bytes to pixels: fast for JPEG, careful for everything else.

Formats: JPEG, PNG, WebP, GIF (first frame), BMP and TIFF. Every way that a picture can be odd is undone here: EXIF
orientation, palettes, transparency, CMYK, 16 bits. Sizes are checked in the header, before a pixel is decoded.
"""

from __future__ import annotations

import io
from typing import Any, Literal

import numpy as np
import simplejpeg
from PIL import Image, ImageOps, UnidentifiedImageError

from handlers import errors

Mode = Literal["RGB", "L"]

MAX_PIXELS = 50_000_000
"""Default limit of width × height: a picture of 50 megapixels takes 150 MB as RGB."""

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")

_SIGNATURES = (
    b"\x89PNG",
    b"RIFF",
    b"GIF8",
    b"II*\x00",
    b"MM\x00*",
    b"\xff\xd8\xff\xe0",
    b"\xff\xd8\xff\xe1",
    b"\xff\xd8\xff\xdb",
)
"""First four bytes of the formats that are read here."""

# Pillow registers the rarer formats only on demand.
Image.init()

_START_OF_SCAN = 0xDA
"""JPEG marker, behind which the picture's data begin (ITU-T T.81, table B.1)."""

_ORIENTATION = 0x0112
"""EXIF tag of the orientation (Exif 2.3, section 4.6.4)."""


def decode(data: bytes | bytearray, *, mode: Mode = "RGB", at_least: int = 0, max_pixels: int = MAX_PIXELS) -> Any:
    """Decode a picture.

    Args:
        data: the file's bytes.
        mode: ``RGB`` or ``L`` (gray).
        at_least: a JPEG may be decoded at a half, quarter or eighth of its size (by its DCT) as long as both sides
            keep this many pixels; 0 decodes in full.
        max_pixels: limit of width × height.

    Returns:
        (H, W, 3) uint8 for RGB, (H, W) uint8 for L; C-contiguous.

    Raises:
        InvalidInput: empty, corrupt or cut off.
        UnsupportedMedia: not an image of a format that is read here.
        TooLarge: more pixels than the limit.
    """
    if not data:
        raise errors.InvalidInput("the image is empty (0 bytes); send the bytes of an image file")
    if data[:2] == b"\xff\xd8":
        fast = _decode_jpeg(bytes(data), mode=mode, at_least=at_least, max_pixels=max_pixels)
        if fast is not None:
            return fast
    return _decode_with_pillow(data, mode=mode, max_pixels=max_pixels)


def _decode_jpeg(data: bytes, *, mode: Mode, at_least: int, max_pixels: int) -> Any:
    """A plain JPEG by libjpeg-turbo; ``None`` when it needs more care (CMYK, unreadable header)."""
    try:
        height, width, colorspace, _ = simplejpeg.decode_jpeg_header(data)
    except ValueError:
        return None
    _check_pixels(int(width), int(height), max_pixels)
    if colorspace not in ("YCbCr", "RGB", "Gray"):
        return None
    # libjpeg decodes a cut-off file to gray without a word; the end marker tells.
    if not _is_whole(data):
        raise errors.InvalidInput("the JPEG is cut off: its end marker is missing; send the whole file")
    try:
        pixels = simplejpeg.decode_jpeg(
            data, colorspace="GRAY" if mode == "L" else "RGB", min_height=at_least, min_width=at_least
        )
    except ValueError as error:
        raise errors.InvalidInput(f"the JPEG cannot be decoded: {error}") from error
    if mode == "L":
        pixels = pixels[:, :, 0]
    orientation = _exif_orientation(data)
    return np.ascontiguousarray(_turn(pixels, orientation)) if orientation != 1 else pixels


def _is_whole(data: bytes) -> bool:
    """Whether a JPEG's end marker stands behind its picture; phones append whole films behind that.

    The segments before the picture are stepped over: a thumbnail in one of them has an end marker of its own.
    """
    at = 2
    while at + 4 <= len(data) and data[at] == 0xFF:
        marker = data[at + 1]
        if marker == 0xFF:  # a fill byte
            at += 1
        elif marker == _START_OF_SCAN:
            return data.find(b"\xff\xd9", at) != -1
        else:
            at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    return False


def _exif_orientation(data: bytes) -> int:
    # The EXIF block stands near the start; looking for its name first saves opening most files a second time.
    if b"Exif\x00\x00" not in data[: 1 << 16]:
        return 1
    try:
        with Image.open(io.BytesIO(data), formats=("JPEG",)) as image:
            return int(image.getexif().get(_ORIENTATION, 1))
    except Exception:  # a broken EXIF block does not spoil the picture
        return 1


def _turn(pixels: Any, orientation: int) -> Any:
    """Undo an EXIF orientation (values 1 to 8 of the tag)."""
    match orientation:
        case 2:
            return pixels[:, ::-1]
        case 3:
            return pixels[::-1, ::-1]
        case 4:
            return pixels[::-1]
        case 5:
            return pixels.swapaxes(0, 1)
        case 6:
            return np.rot90(pixels, k=-1)
        case 7:
            return pixels[::-1, ::-1].swapaxes(0, 1)
        case 8:
            return np.rot90(pixels, k=1)
        case _:
            return pixels


def _decode_with_pillow(data: bytes | bytearray, *, mode: Mode, max_pixels: int) -> Any:
    try:
        image = Image.open(io.BytesIO(data), formats=FORMATS)
    except UnidentifiedImageError:
        if bytes(data[:4]) in _SIGNATURES:
            raise errors.InvalidInput(
                f"the image is corrupt or cut off: its {len(data)} bytes begin like an image file and do not go on "
                "like one; send the whole file"
            ) from None
        raise errors.UnsupportedMedia(
            f"the {len(data)} bytes are no image that can be read here; formats: {', '.join(FORMATS)}"
        ) from None
    except Image.DecompressionBombError:
        # Pillow's own bound lies above any sensible limit of ours.
        raise errors.TooLarge(
            f"the image has more pixels than the limit of {max_pixels}; send a smaller one", limit_pixels=max_pixels
        ) from None
    except Exception as error:
        raise errors.InvalidInput(f"the image cannot be opened: {error}") from error
    with image:
        _check_pixels(image.width, image.height, max_pixels)
        try:
            image.seek(0)
            image.load()
            return np.asarray(_to_mode(ImageOps.exif_transpose(image), mode))
        except Exception as error:  # Pillow's decoders raise whatever they met: OSError, SyntaxError, struct.error …
            raise errors.InvalidInput(f"the {image.format} image cannot be decoded: {error}") from error


def _to_mode(image: Image.Image, mode: Mode) -> Image.Image:
    if image.mode.startswith("I") or image.mode == "F":
        # Pillow clips 16-bit values to 255 on conversion: a white page. Bring them to 8 bits first.
        pixels = np.asarray(image, dtype=np.float64)
        top = 65535.0 if pixels.max(initial=0.0) > 255 else 255.0
        image = Image.fromarray((pixels.clip(0, top) * (255.0 / top)).round().astype(np.uint8), mode="L")
    if "transparency" in image.info or image.mode in ("RGBA", "LA", "PA", "RGBa", "La"):
        # Transparent pixels often hold black; on white is how people saw the picture.
        with_alpha = image.convert("RGBA")
        image = Image.new("RGBA", with_alpha.size, "white")
        image.alpha_composite(with_alpha)
    return image if image.mode == mode else image.convert(mode)


def _check_pixels(width: int, height: int, max_pixels: int) -> None:
    if width * height > max_pixels:
        raise errors.TooLarge(
            f"the image has {width} × {height} = {width * height} pixels, the limit is {max_pixels}; send fewer",
            limit_pixels=max_pixels,
        )
