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
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageChops, ImageOps, UnidentifiedImageError

from sslengine.data.decode.files import data_error, read_file
from sslengine.data.decode.true_values import (
    LARGE_BIG_ENDIAN,
    PHOTOMETRIC,
    TIFF,
    WHITE_IS_ZERO,
    Page,
    StoredBands,
    ask_pillow,
    read_bands,
    says_alpha,
)
from sslengine.data.options import SplitOptions
from sslengine.data.pixel_values import RANGES, WHITE, Colour, PixelRange, parse_colour
from sslengine.errors import ConfigError, OutputError, readable

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
PIXEL = 4  # bytes, in which Pillow keeps RGB
# In an image's info: some of its pixels were transparent.
WAS_TRANSPARENT = "was_transparent"
# There too: the file does not say that the band which Pillow takes for alpha is that.
NOT_ALPHA = "not_alpha"

_pillow_limit = threading.Lock()


@dataclass(frozen=True)
class Decoder:
    """How a split wants its images decoded."""

    where: str
    max_pixels: int
    exif_rotation: bool
    mode: str = "RGB"
    pixel_range: PixelRange | None = None
    page: Page = None
    background: Colour | None = WHITE

    @classmethod
    def build(cls, options: SplitOptions, split: str) -> Decoder:
        return cls(
            f"config.DATA.{split}",
            options.MAX_IMAGE_PIXELS,
            options.EXIF_ROTATION,
            options.IMAGE_MODE,
            PixelRange.parse(options.PIXEL_RANGE),
            options.IMAGE_PAGE,
            parse_colour(options.TRANSPARENT),
        )

    def __call__(self, encoded: bytes) -> Image.Image:
        """Decode an image; with IMAGE_MODE stored perhaps an array. Raises if it cannot."""
        return self.pixels(self.opened(encoded))

    def stored(self, encoded: bytes) -> NDArray[Any]:
        """Decode all values of a file: channels x height x width."""
        values = np.asarray(replace(self, mode="stored", pixel_range=None)(encoded))
        return np.ascontiguousarray(np.moveaxis(np.atleast_3d(values), -1, 0))

    def given(self, image: Image.Image | NDArray[Any]) -> Image.Image:
        """Return what a file with this image in it would become."""
        if not isinstance(image, Image.Image):
            return self._check_array(image)
        bands = ask_pillow(image)
        return self.pixels(image if bands is None else self._convert_bands(bands, image))

    def convert_array(self, values: NDArray[Any]) -> Image.Image:
        """Return what a file with these values, height x width x channels, would become."""
        return self.pixels(self._convert_bands(StoredBands(values, values.shape[2]), None))

    def opened(self, encoded: bytes) -> Image.Image:
        """Read the header, and no pixels yet, of an image of 8 bits; another one whole."""
        if not encoded:
            raise UnidentifiedImageError("the file is empty")
        if encoded.startswith(NPY):
            return self._check_array(np.load(BytesIO(encoded), allow_pickle=False))
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
            return self._convert_bands(bands, image)
        assert image is not None
        if image.mode in ("RGBA", "LA", "PA") and not says_alpha(encoded, image):
            image.info[NOT_ALPHA] = True
        return image

    def is_plain_jpeg(self, image: Any) -> bool:
        """Tell whether the opened image is a JPEG whose stored pixels are those wanted."""
        if self.mode != "RGB" or self.exif_rotation or not isinstance(image, Image.Image):
            return False
        return (image.format, image.mode) == ("JPEG", "RGB")

    def pixels(self, image: Image.Image) -> Image.Image:
        """Read the pixels of an opened image."""
        if not isinstance(image, Image.Image):
            return image
        white_is_zero = _white_is_zero(image)
        if self.exif_rotation:
            image = ImageOps.exif_transpose(image)
        if self.mode == "stored":
            self._refuse_among_deeper()
            return ImageChops.invert(image) if white_is_zero else _keep_stored(image)
        if image.mode in ("La", "RGBa"):  # multiplied with alpha, which Pillow makes no RGB of
            image = image.convert(image.mode.upper())
        is_plain = image.mode == "RGB" and "transparency" not in image.info
        if self.background is not None and not is_plain and has_alpha(image):
            image = put_on_colour(image, self.background)
        return to_rgb(image) if self.mode == "RGB" else to_rgb(image).convert("L")

    def _convert_bands(self, bands: StoredBands, image: Image.Image | None) -> Image.Image:
        values = bands.values
        self._check_size(values.shape[1], values.shape[0])
        if self.exif_rotation and image is not None:
            values = _turn(values, image.getexif().get(ORIENTATION, 1))
        if self.mode == "stored":
            return self._check_array(values)
        if bands.colours not in (1, 3):
            raise ConfigError(
                f"it has {bands.colours} bands, and IMAGE_MODE {self.mode} is for one or three: "
                f"set {self.where}.IMAGE_MODE to stored."
            )
        colours, opacity = replace(bands, values=values).seen(self.background is None)
        made = self._narrow(colours, opacity)
        made = 255 - made if bands.white_is_zero else made
        if opacity is not None:
            made = np.rint(made * opacity + np.array(self.background) * (1 - opacity)).astype("u1")
        found = Image.fromarray(made if made.shape[2] == 3 else made[..., 0])
        found.info |= {} if opacity is None else {WAS_TRANSPARENT: True}
        return found

    def _narrow(self, values: NDArray[Any], opacity: NDArray[Any] | None) -> NDArray[np.uint8]:
        if values.dtype == np.uint8:
            return np.array(values, order="C")
        if self.pixel_range is None:
            low, high = float(np.nanmin(values)), float(np.nanmax(values))
            raise ConfigError(
                f"its values are of type {values.dtype}, from {low:g} to {high:g}, and IMAGE_MODE "
                f"{self.mode} has 8 bits. Say which are black and white with "
                f"{self.where}.PIXEL_RANGE: {RANGES}; or keep all with IMAGE_MODE: stored."
            )
        decide = values if opacity is None else values[opacity[..., 0] > 0]
        return np.array(self.pixel_range.to_8_bits(values, decide), order="C")

    def _check_array(self, values: NDArray[Any]) -> Image.Image:
        """Return it as ToTensor takes it; an image by its use alone, not by its type."""
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
        """Refuse an image of 8 bits if the others have more: ToTensor divides its values alone."""
        limits = self.pixel_range and self.pixel_range.limits
        if limits and limits[1] > 255:
            raise ConfigError(
                f"its values are of 8 bits, and are divided by 255; the run is trained on "
                f"values up to {limits[1]:g} ({self.where}.PIXEL_RANGE)."
            )

    def _check_size(self, width: int, height: int, size: int = PIXEL) -> None:
        """Refuse too many pixels of `size` bytes. The limit is for 4; more count as several."""
        if width * height * max(size, PIXEL) > self.max_pixels * PIXEL:
            pixels = f"pixels of {size} bytes" if size > PIXEL else "pixels"
            raise Image.DecompressionBombError(
                f"the image has {width} x {height} {pixels}, more than "
                f"{self.where}.MAX_IMAGE_PIXELS={self.max_pixels}{f' of {PIXEL}' * (size > PIXEL)}"
            )


def to_rgb(image: Image.Image) -> Image.Image:
    """Return what Pillow's convert makes of an image of 8 bits."""
    if "transparency" in image.info and image.mode == "P":
        image = image.convert("RGBA")  # Pillow warns of the direct way, with the same colours
    return image.convert("RGB")


def has_alpha(image: Image.Image) -> bool:
    found = image.mode in ("RGBA", "LA", "PA") or getattr(image.palette, "mode", "") == "RGBA"
    return NOT_ALPHA not in image.info and (found or "transparency" in image.info)


def put_on_colour(image: Image.Image, colour: Colour) -> Image.Image:
    """Return RGB, or the image as RGBA if all of it is opaque. image: of 8 bits, in any mode."""
    image = image.convert("RGBA")
    if image.getchannel("A").getextrema() == (255, 255):
        return image
    made = image.convert("RGB")
    made.paste(colour, (0, 0, *made.size))
    made.paste(image, mask=image)
    made.info[WAS_TRANSPARENT] = True
    return made


def _keep_stored(image: Image.Image) -> Image.Image:
    """Return the image, with the colours of its palette."""
    if image.mode in ("P", "PA"):
        return image.convert("RGBA" if "transparency" in image.info else "RGB")
    image.load()
    return image


def _white_is_zero(image: Image.Image) -> bool:
    """Tell a TIFF whose values Pillow turns round, so that the largest is white."""
    tags = getattr(image, "tag_v2", {})
    return image.mode in ("1", "L") and tags.get(PHOTOMETRIC) == WHITE_IS_ZERO


def _turn(values: NDArray[Any], orientation: int) -> NDArray[Any]:
    """Turn an image as EXIF's numbers from 1 to 8 say how to look at it."""
    if orientation in (5, 6, 7, 8):
        values = values.swapaxes(0, 1)
    if orientation in (3, 4, 7, 8):
        values = values[::-1]
    return values[:, ::-1] if orientation in (2, 3, 6, 7) else values


def _open(encoded: bytes) -> Image.Image:
    """Read the header alone. The limit of Pillow itself gives way to MAX_IMAGE_PIXELS."""
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


def open_image(path: Path, decoder: Decoder) -> Image.Image:
    try:
        return decoder(read_file(path))
    except Exception as error:  # decoders raise many kinds
        text = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise data_error(path)(
            f"{readable(path)} cannot be read as an image: {readable(text)}"
        ) from error


def save_image(picture: Image.Image, path: Path) -> None:
    try:
        picture.save(path)
    except (OSError, ValueError) as error:  # PIL chooses the format by the suffix
        raise OutputError(f"{path}: the picture cannot be written: {error}") from error


def as_rgb(image: Any) -> Image.Image:
    """Show an image; of an array the first three bands, or the first, scaled to its value range."""
    if isinstance(image, Image.Image):
        return image.convert("RGB")
    bands = image[..., : 3 if image.shape[2] >= 3 else 1].astype(np.float64)
    least, most = np.nanmin(bands), np.nanmax(bands)
    levels = np.nan_to_num((bands - least) / max(most - least, 1e-12) * 255).astype(np.uint8)
    return Image.fromarray(np.broadcast_to(levels, (*levels.shape[:2], 3)).copy())
