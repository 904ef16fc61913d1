"""The one place where encoded bytes become an image.

As in VISSL an image is RGB, transparency is dropped, an animation is its first frame, and
nothing is turned as EXIF may say. Two things differ. Grey levels of 16 bits are scaled to 8,
where Pillow would clip nearly all of them to white. And what an image takes in memory is known
before its pixels are read: one with more than MAX_IMAGE_PIXELS of them is refused.

IMAGE_MODE says otherwise: L, grey levels; stored, as the file has them. What Pillow has no image
for, arrays in .npy files and TIFFs of many bands, comes as an array height x width x channels,
which ToTensor takes: uint8 stays so, all other numbers become float32 and keep their values.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from importlib.util import find_spec
from io import BytesIO
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from sslengine.data.options import SplitOptions
from sslengine.errors import DataError

# What Pillow may take a file for, whatever its name is. Some of the other formats are programs, for
# which Pillow starts an interpreter (EPS).
FORMATS = (
    "JPEG", "PNG", "BMP", "GIF", "PPM", "DIB", "TIFF", "WEBP", "JPEG2000",
    *(["AVIF"] if find_spec("PIL.AvifImagePlugin") else []),
)  # fmt: skip

# Formats whose grey levels of more than 8 bits Pillow gives as 32-bit integers up to 65535.
SIXTEEN_BITS_IN_32 = ("PNG", "PPM")

NPY, TIFF = b"\x93NUMPY", (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")

_pillow_limit = threading.Lock()


@dataclass(frozen=True)
class Decoder:
    """How a split wants its images decoded."""

    where: str
    max_pixels: int
    exif_rotation: bool
    mode: str = "RGB"

    @classmethod
    def of(cls, options: SplitOptions, split: str) -> Decoder:
        return cls(
            f"config.DATA.{split}",
            options.MAX_IMAGE_PIXELS,
            options.EXIF_ROTATION,
            options.IMAGE_MODE,
        )

    def __call__(self, encoded: bytes) -> Image.Image:
        """The image; with IMAGE_MODE stored perhaps an array. Raises why it cannot be had."""
        return self.pixels(self.opened(encoded))

    def opened(self, encoded: bytes) -> Image.Image:
        """With its header read, and no pixels yet, if it is no array."""
        if not encoded:
            raise UnidentifiedImageError("the file is empty")
        if encoded.startswith(NPY):
            return self._array(np.load(BytesIO(encoded), allow_pickle=False))
        try:
            image = _open(encoded)
        except UnidentifiedImageError:
            if encoded.startswith(TIFF) and self.mode == "stored":
                return self._array(_bands(encoded))
            raise
        self._check_size(*image.size)
        return image

    def pixels(self, image: Image.Image) -> Image.Image:
        """Of an opened image."""
        if not isinstance(image, Image.Image):
            return image
        if self.exif_rotation:
            image = ImageOps.exif_transpose(image)
        if self.mode == "stored":
            return _as_stored(image)
        return to_rgb(image) if self.mode == "RGB" else to_grey(image)

    def _array(self, values: NDArray[Any]) -> Image.Image:
        """As ToTensor takes it; an image by its use alone, not by its type."""
        if self.mode != "stored":
            raise ValueError(
                f"it holds an array of shape {values.shape}, not an image: "
                f"set {self.where}.IMAGE_MODE to stored"
            )
        if values.ndim not in (2, 3) or values.dtype.kind not in "buif":
            raise ValueError(
                f"an array of shape {values.shape} and type {values.dtype} is no image: expected "
                f"height x width x channels"
            )
        self._check_size(values.shape[1], values.shape[0])
        values = values.reshape(*values.shape[:2], -1)
        values = values if values.dtype == np.uint8 else values.astype(np.float32)
        return cast(Image.Image, values)

    def _check_size(self, width: int, height: int) -> None:
        if width * height > self.max_pixels:
            raise Image.DecompressionBombError(
                f"the image has {width} x {height} pixels, more than "
                f"{self.where}.MAX_IMAGE_PIXELS={self.max_pixels}"
            )


def to_rgb(image: Image.Image) -> Image.Image:
    """What Pillow's convert makes of it, but for grey levels beyond 8 bits."""
    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        image = _to_8_bits(image)
    if "transparency" in image.info and image.mode == "P":
        image = image.convert("RGBA")  # Pillow warns of the direct way, with the same colours
    return image.convert("RGB")


def to_grey(image: Image.Image) -> Image.Image:
    return to_rgb(image).convert("L")


def _as_stored(image: Image.Image) -> Image.Image:
    """Of a palette the colours that it stands for."""
    if image.mode in ("P", "PA"):
        return image.convert("RGBA" if "transparency" in image.info else "RGB")
    image.load()
    return image


def _bands(encoded: bytes) -> NDArray[Any]:
    """A TIFF that Pillow cannot read, its bands last."""
    try:
        import tifffile
    except ImportError as error:
        raise DataError(
            "Pillow cannot read this TIFF, which may have many bands: pip install tifffile"
        ) from error
    with tifffile.TiffFile(BytesIO(encoded)) as file:
        page = file.pages[0]
        planar = page.planarconfig == tifffile.PLANARCONFIG.SEPARATE and page.samplesperpixel > 1
        values: NDArray[Any] = page.asarray()
    return np.moveaxis(values, 0, -1) if planar else values


def _open(encoded: bytes) -> Image.Image:
    """Reads the header alone. The limit of Pillow itself gives way to MAX_IMAGE_PIXELS."""
    with _pillow_limit:
        before, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
        try:
            Image.preinit()  # else the first file would make Pillow import all formats it has
            return Image.open(BytesIO(encoded), formats=FORMATS)
        except UnidentifiedImageError:
            begins = bytes(encoded[:12])
            raise UnidentifiedImageError(
                f"cannot identify an image in {len(encoded)} bytes that begin with {begins!r}"
            ) from None
        finally:
            Image.MAX_IMAGE_PIXELS = before


def _to_8_bits(image: Image.Image) -> Image.Image:
    values = np.asarray(image)
    if image.mode.startswith("I;16") or image.format in SIXTEEN_BITS_IN_32:
        return Image.fromarray((values.astype(np.uint32) * 255 + 32767) // 65535).convert("L")
    low, high = values.min(), values.max()
    if not 0 <= low <= high <= 255:
        raise ValueError(
            f"its values, of mode {image.mode}, go from {low:g} to {high:g}, and nothing says "
            f"which of them is white; save it with values from 0 to 255, or with 16 bits"
        )
    return image.convert("L")
