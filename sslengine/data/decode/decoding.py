"""The one place where encoded bytes become an image.

As in VISSL an image is RGB, an animation is its first frame, and nothing is turned as EXIF may
say. Through transparent pixels a colour is seen, TRANSPARENT. What an image takes in memory is
known before its pixels are read: one with more than MAX_IMAGE_PIXELS of them is refused.

No value is narrowed without being asked for. An image of more than 8 bits becomes one of 8 as
PIXEL_RANGE says, and is refused without it. IMAGE_MODE says otherwise: L, grey levels; stored, as
the file has them. Then images of 8 bits come as Pillow's, and all others as arrays height x width x
channels, which ToTensor takes: uint8 stays so, all other numbers become float32 and keep their
values.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from importlib.util import find_spec
from io import BytesIO
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageChops, ImageOps, UnidentifiedImageError

from sslengine.data.decode import transparency
from sslengine.data.decode.pixel_range import FORMS, PixelRange
from sslengine.data.decode.true_values import (
    LARGE_BIG_ENDIAN,
    PHOTOMETRIC,
    TIFF,
    WHITE_IS_ZERO,
    Bands,
    Page,
    of_pillow,
    read_bands,
    says_alpha,
)
from sslengine.data.options import SplitOptions
from sslengine.errors import ConfigError

# The formats that Pillow may recognise, for any name of a file. Some of the others are programs,
# for which Pillow starts an interpreter (EPS).
FORMATS = (
    "JPEG", "PNG", "BMP", "GIF", "PPM", "DIB", "TIFF", "WEBP", "JPEG2000",
    *(["AVIF"] if find_spec("PIL.AvifImagePlugin") else []),
)  # fmt: skip

NPY = b"\x93NUMPY"
ORIENTATION = 0x0112
# What float32 holds exactly.
LARGEST = 2**24
WHITE = 255  # of 8 bits

PIXEL = 4  # bytes, in which Pillow keeps RGB

_pillow_limit = threading.Lock()


class NarrowedError(ConfigError):
    """An image has more than 8 bits, and nothing says which of its values is white."""

    def __init__(self, where: str, mode: str, dtype: str, low: float, high: float) -> None:
        self.where, self.mode = where, mode
        self.dtype, self.low, self.high = dtype, low, high
        super().__init__(self.told(low, high))

    def told(self, low: float, high: float) -> str:
        return (
            f"its values are of type {self.dtype}, from {low:g} to {high:g}, and IMAGE_MODE "
            f"{self.mode} has 8 bits. Say which are black and white with {self.where}.PIXEL_RANGE: "
            f"{FORMS}; or keep all values with IMAGE_MODE: stored."
        )

    def __reduce__(self) -> Any:
        return type(self), (self.where, self.mode, self.dtype, self.low, self.high)


@dataclass(frozen=True)
class Decoder:
    """How a split wants its images decoded."""

    where: str
    max_pixels: int
    exif_rotation: bool
    mode: str = "RGB"
    pixel_range: PixelRange | None = None
    page: Page = None
    background: transparency.Colour | None = transparency.WHITE

    @classmethod
    def of(cls, options: SplitOptions, split: str) -> Decoder:
        return cls(
            f"config.DATA.{split}",
            options.MAX_IMAGE_PIXELS,
            options.EXIF_ROTATION,
            options.IMAGE_MODE,
            PixelRange.parse(options.PIXEL_RANGE),
            options.IMAGE_PAGE,
            transparency.parse_colour(options.TRANSPARENT),
        )

    def __call__(self, encoded: bytes) -> Image.Image:
        """The image; with IMAGE_MODE stored perhaps an array. Raises if it cannot be decoded."""
        return self.pixels(self.opened(encoded))

    def given(self, image: Image.Image | NDArray[Any]) -> Image.Image:
        """What a file with this image in it would become."""
        if not isinstance(image, Image.Image):
            return self._array(image)
        bands = of_pillow(image)
        return self.pixels(image if bands is None else self._of_bands(bands, image))

    def of_array(self, values: NDArray[Any]) -> Image.Image:
        """What a file with these values, height x width x channels, would become."""
        return self.pixels(self._of_bands(Bands(values, values.shape[2]), None))

    def opened(self, encoded: bytes) -> Image.Image:
        """With its header read, and no pixels yet, if it is one of 8 bits."""
        if not encoded:
            raise UnidentifiedImageError("the file is empty")
        if encoded.startswith(NPY):
            return self._array(np.load(BytesIO(encoded), allow_pickle=False))
        try:
            image = None if encoded.startswith(LARGE_BIG_ENDIAN) else _open(encoded)
        except UnidentifiedImageError:
            if not encoded.startswith(TIFF):
                raise
            image = None
        if image is not None:
            self._check_size(*image.size)
        bands = read_bands(encoded, image, self.page, self.mode == "stored", self._check_size)
        if bands is not None:
            return self._of_bands(bands, image)
        assert image is not None
        if image.mode in ("RGBA", "LA", "PA") and not says_alpha(encoded, image):
            image.info[transparency.NOT_ALPHA] = True
        return image

    def is_plain_jpeg(self, image: Any) -> bool:
        """Is the opened image a JPEG whose stored pixels are those wanted?"""
        if self.mode != "RGB" or self.exif_rotation or not isinstance(image, Image.Image):
            return False
        return (image.format, image.mode) == ("JPEG", "RGB")

    def pixels(self, image: Image.Image) -> Image.Image:
        """Of an opened image."""
        if not isinstance(image, Image.Image):
            return image
        white_is_zero = _white_is_zero(image)
        if self.exif_rotation:
            image = ImageOps.exif_transpose(image)
        if self.mode == "stored":
            self._refuse_among_deeper()
            return ImageChops.invert(image) if white_is_zero else _as_stored(image)
        if image.mode in ("La", "RGBa"):  # multiplied with alpha, which Pillow makes no RGB of
            image = image.convert(image.mode.upper())
        is_plain = image.mode == "RGB" and "transparency" not in image.info
        if self.background is not None and not is_plain and transparency.has_alpha(image):
            image = transparency.put_on_colour(image, self.background)
        return to_rgb(image) if self.mode == "RGB" else to_rgb(image).convert("L")

    def _of_bands(self, bands: Bands, image: Image.Image | None) -> Image.Image:
        values = bands.values
        self._check_size(values.shape[1], values.shape[0])
        if self.exif_rotation and image is not None:
            values = _turned(values, image.getexif().get(ORIENTATION, 1))
        if self.mode == "stored":
            return self._array(values)
        if bands.colours not in (1, 3):
            raise ConfigError(
                f"it has {bands.colours} bands, and IMAGE_MODE {self.mode} is for one or three: "
                f"set {self.where}.IMAGE_MODE to stored."
            )
        colours, opacity = replace(bands, values=values).seen(self.background is None)
        made = self._in_8_bits(colours, opacity)
        made = 255 - made if bands.white_is_zero else made
        if opacity is not None:
            made = np.rint(made * opacity + np.array(self.background) * (1 - opacity)).astype("u1")
        found = Image.fromarray(made if made.shape[2] == 3 else made[..., 0])
        found.info |= {} if opacity is None else {transparency.WAS_TRANSPARENT: True}
        return found

    def _in_8_bits(self, values: NDArray[Any], opacity: NDArray[Any] | None) -> NDArray[np.uint8]:
        if values.dtype == np.uint8:
            return np.array(values, order="C")
        if self.pixel_range is None:
            low, high = float(np.nanmin(values)), float(np.nanmax(values))
            raise NarrowedError(self.where, self.mode, str(values.dtype), low, high)
        decide = values if opacity is None else values[opacity[..., 0] > 0]
        return np.array(self.pixel_range.to_8_bits(values, decide), order="C")

    def _array(self, values: NDArray[Any]) -> Image.Image:
        """As ToTensor takes it; an image by its use alone, not by its type."""
        if self.mode != "stored":
            raise ConfigError(
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
        if values.dtype.kind in "iu" and values.dtype.itemsize > 2:
            least, most = int(values.min(initial=0)), int(values.max(initial=0))
            if max(-least, most) > LARGEST:
                raise ValueError(
                    f"its values go from {least} to {most}, and float32, which they become, has "
                    f"whole numbers up to {LARGEST} alone"
                )
        if values.dtype == np.uint8:
            self._refuse_among_deeper()
            return cast(Image.Image, np.array(values, order="C"))
        return cast(Image.Image, values.astype(np.float32, order="C"))

    def _refuse_among_deeper(self) -> None:
        """An image of 8 bits, if the others have more: ToTensor divides its values alone by 255."""
        limits = self.pixel_range and self.pixel_range.limits
        if limits and limits[1] > WHITE:
            raise ConfigError(
                f"its values are of 8 bits, and are divided by {WHITE}; the run is trained on "
                f"values up to {limits[1]:g} ({self.where}.PIXEL_RANGE)."
            )

    def _check_size(self, width: int, height: int, size: int = PIXEL) -> None:
        """size: bytes of a pixel. The limit is for pixels of 4; larger ones count as several."""
        if width * height * max(size, PIXEL) > self.max_pixels * PIXEL:
            pixels = f"pixels of {size} bytes" if size > PIXEL else "pixels"
            raise Image.DecompressionBombError(
                f"the image has {width} x {height} {pixels}, more than "
                f"{self.where}.MAX_IMAGE_PIXELS={self.max_pixels}{f' of {PIXEL}' * (size > PIXEL)}"
            )


def to_rgb(image: Image.Image) -> Image.Image:
    """What Pillow's convert makes of an image of 8 bits."""
    if "transparency" in image.info and image.mode == "P":
        image = image.convert("RGBA")  # Pillow warns of the direct way, with the same colours
    return image.convert("RGB")


def _as_stored(image: Image.Image) -> Image.Image:
    """The colours of a palette."""
    if image.mode in ("P", "PA"):
        return image.convert("RGBA" if "transparency" in image.info else "RGB")
    image.load()
    return image


def _white_is_zero(image: Image.Image) -> bool:
    """Is it a TIFF whose values Pillow turns round, so that the largest is white?"""
    tags = getattr(image, "tag_v2", {})
    return image.mode in ("1", "L") and tags.get(PHOTOMETRIC) == WHITE_IS_ZERO


def _turned(values: NDArray[Any], orientation: int) -> NDArray[Any]:
    """As EXIF's numbers from 1 to 8 say how to look at an image."""
    if orientation in (5, 6, 7, 8):
        values = values.swapaxes(0, 1)
    if orientation in (3, 4, 7, 8):
        values = values[::-1]
    return values[:, ::-1] if orientation in (2, 3, 6, 7) else values


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
