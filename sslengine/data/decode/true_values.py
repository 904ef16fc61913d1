"""The values of a file that Pillow would narrow: to 8 bits, to fewer bands, to the first page.

What a TIFF holds beyond 8 bits, three colours and alpha comes from tifffile.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from sslengine.data.decode.deep_png import BANDS, decode_16_bits
from sslengine.errors import DataError

Values = NDArray[Any]
Page = int | str | None  # number, all, or not said
CheckSize = Callable[[int, int, int], None]  # of width, height and bytes of a pixel; may raise

LARGE_BIG_ENDIAN = b"MM\0+"  # a TIFF that Pillow does not know
TIFF = (b"II*\0", b"MM\0*", b"II+\0", LARGE_BIG_ENDIAN)
# Tags of a TIFF.
BITS, PHOTOMETRIC, SAMPLES, EXTRA, FORMAT, DEPTH = 258, 262, 277, 338, 339, 32997
REDUCED_OR_MASK = 0b101  # pages that are not images by themselves
ALPHA = (1, 2)  # in EXTRA: of it, or of the others multiplied with it
WHITE_IS_ZERO = 0  # a PHOTOMETRIC
# Of a JPEG 2000 file the kinds of bands: after some of colour, 0, alpha, or alpha multiplied in.
_DEFINED_ALPHA = re.compile(rb"cdef..(?:..\0\0..)*..\0[\1\2]", re.DOTALL)
ANIMATED = ("GIF", "WEBP", "PNG")

# Of each TIFF of many bands it says that it cannot read it; tifffile can.
logging.getLogger("PIL.TiffImagePlugin").setLevel(logging.CRITICAL)


@dataclass(frozen=True)
class StoredBands:
    """Height x width x bands, and the number of them that is colour or grey: others are alpha."""

    values: Values
    colours: int
    white_is_zero: bool = False
    opaque: float = 1.0  # the greatest value of alpha
    premultiplied: bool = False  # the colours are multiplied with alpha
    key: Any = None  # the colour whose pixels are invisible, in a file without alpha

    def seen(self, dropped: bool) -> tuple[Values, Values | None]:
        """Return the colours, not multiplied with alpha, and the opacity of each pixel from 0 to 1,
        None if all are opaque. dropped: so is alpha, and the colours are as stored."""
        colours, alpha = np.split(self.values, [self.colours], axis=2)
        if self.key is not None:
            opacity = (colours != np.array(self.key)).any(2, keepdims=True) * 1.0
        else:
            opacity = np.clip(alpha[..., :1] / self.opaque, 0, 1)
        if dropped or opacity.min(initial=1) == 1:
            return colours, None
        if self.premultiplied:
            whole = np.divide(colours, opacity, out=np.zeros(colours.shape), where=opacity > 0)
            limit = self.opaque if colours.dtype.kind == "u" else np.inf
            colours = np.minimum(np.rint(whole) if limit < np.inf else whole, limit)
        return colours.astype(self.values.dtype), opacity


def read_bands(
    encoded: bytes, image: Image.Image | None, page: Page, every: bool, check_size: CheckSize
) -> StoredBands | None:
    """Return the values; None: Pillow has all of the file. image: as Pillow opened it, if it could.

    every: all bands and pages are asked for, not those alone that make an RGB image.
    """
    if encoded.startswith(TIFF):
        return _tiff(encoded, image, page, every, check_size)
    assert image is not None
    _turn_to(image, page, every)
    if image.format == "PNG" and encoded[24] == 16:
        check_size(*image.size, 2 * BANDS[encoded[25]])
        return _png(encoded, image)
    if image.format == "PNG" and image.mode == "L" and "transparency" in image.info:
        # A grey level in the bits of the file, which Pillow has spread over 8.
        image.info["transparency"] *= 255 // (2 ** encoded[24] - 1)
    if image.format == "PPM" and image.mode in ("I", "RGB") and encoded[:2] in (b"P5", b"P6"):
        return _read_ppm(encoded, image)
    if image.format in ("JPEG2000", "AVIF") and (bits := _bits(encoded, image)) > 8:
        if image.mode.startswith("I;16"):
            return _take_pillows(image)
        raise DataError(
            f"it has {bits} bits in each of {len(image.getbands())} bands, of which Pillow keeps "
            f"8: save it as TIFF or PNG."
        )
    return ask_pillow(image)


def ask_pillow(image: Image.Image) -> StoredBands | None:
    """Return the values; None: they have 8 bits."""
    return _take_pillows(image) if image.mode in ("I", "F") or "I;16" in image.mode else None


def says_alpha(encoded: bytes, image: Any) -> bool:
    """Tell whether a band that Pillow takes for alpha is declared as that. It may be infrared."""
    if image.format == "JPEG2000":
        return bool(_DEFINED_ALPHA.search(encoded, 0, encoded.find(b"jp2c")))
    return image.format != "TIFF" or image.tag_v2.get(EXTRA, (0,))[0] in ALPHA


def _take_pillows(image: Image.Image, dtype: str = "") -> StoredBands:
    values = np.asarray(image)
    key = image.info.get("transparency")
    return StoredBands((values.astype(dtype) if dtype else values)[..., None], 1, key=key)


def _turn_to(image: Image.Image, page: Page, every: bool) -> None:
    pages = getattr(image, "n_frames", 1) if image.format in ANIMATED else 1
    if page == "all" and pages > 1:
        raise DataError(
            f"IMAGE_PAGE: all is for TIFF, and it is a {image.format} of {pages} frames."
        )
    if pages > 1 or page not in (None, 0, "all"):
        image.seek(_chosen(pages, page, every)[0])


def _chosen(pages: int, page: Page, every: bool) -> Sequence[int]:
    if page is None and pages > 1 and every:
        raise DataError(
            f"it is a stack of {pages} pages, and nothing says which to take: set IMAGE_PAGE to "
            f"the number of one, from 0, or to all, which makes them bands."
        )
    if page == "all":
        return range(pages)
    number = int(page or 0)
    if not 0 <= number < pages:
        raise DataError(f"IMAGE_PAGE is {number}, and it has {pages} pages, counted from 0.")
    return [number]


def _png(encoded: bytes, image: Image.Image) -> StoredBands:
    bands = BANDS[encoded[25]]
    if bands == 1:
        return _take_pillows(image, "uint16")
    return StoredBands(
        decode_16_bits(encoded), bands - (bands in (2, 4)), opaque=65535,
        key=image.info.get("transparency"),
    )  # fmt: skip


def _read_ppm(encoded: bytes, image: Any) -> StoredBands | None:
    """Read a file whose maximum has two bytes; None for one of 8 bits."""
    _, _, begin, kind = image.tile[0]
    if image.mode != "I" and not (isinstance(kind, tuple) and kind[-1] > 255):
        return None
    bands, (width, height) = (1 if image.mode == "I" else 3), image.size
    count = width * height * bands
    if len(encoded) - begin < 2 * count:
        raise OSError("the file is cut off")
    values = np.frombuffer(encoded, ">u2", count, begin)
    return StoredBands(values.astype(np.uint16).reshape(height, width, bands), bands)


def _bits(encoded: bytes, image: Image.Image) -> int:
    """Read the bits of a band: in the header of a JPEG 2000 codestream, or AV1's configuration."""
    if image.format == "JPEG2000":
        begin = encoded.find(b"\xff\x4f\xff\x51")
        return (encoded[begin + 42] & 0x7F) + 1 if begin >= 0 else 8
    begin = encoded.find(b"av1C")
    high, twelve = encoded[begin + 6] >> 6 & 1, encoded[begin + 6] >> 5 & 1
    return 8 if begin < 0 or not high else 12 if twelve else 10


# ---- TIFF


def _tiff(
    encoded: bytes, image: Image.Image | None, page: Page, every: bool, check_size: CheckSize
) -> StoredBands | None:
    if image is not None and _is_plain(image, every):
        if page is None and not every:
            return None
        if getattr(image, "n_frames", 1) == 1:
            _chosen(1, page, every)
            return None
    try:
        import tifffile
    except ImportError as error:
        raise DataError(
            "it is a TIFF of many bands, pages, or bands of more than 8 bits, which needs the "
            "package tifffile: pip install 'sslengine[tiff]'."
        ) from error
    with tifffile.TiffFile(BytesIO(encoded)) as file:
        found = [each for each in file.pages if not each.subfiletype & REDUCED_OR_MASK]
        chosen = _chosen(len(found), page, every)
        for each in (found[number] for number in chosen):
            size = each.nbytes // max(1, each.imagewidth * each.imagelength)
            sides = max(each.imagewidth, each.tilewidth), max(each.imagelength, each.tilelength)
            check_size(*sides, len(chosen) * size)
        if image is not None and len(chosen) == 1:
            image.seek(found[chosen[0]].index)
            if _is_plain(image, every):
                return None
        parts = [_page_of_tiff(found[number]) for number in chosen]
    return parts[0] if len(parts) == 1 else _joined(parts)


def _is_plain(image: Any, every: bool) -> bool:
    """Tell a page of which Pillow has all: 8 bits or fewer, of which it makes 8.

    A band too many is dropped where RGB is asked for.
    """
    tags = image.tag_v2
    if max(tags.get(BITS, (1,))) > 8 or {*tags.get(FORMAT, (1,))} != {1} or tags.get(DEPTH, 1) > 1:
        return False
    as_many = len(image.getbands()) == tags.get(SAMPLES, 1) and 1 not in tags.get(EXTRA, ())
    return not every or as_many or image.mode == "P"


def _joined(parts: Sequence[StoredBands]) -> StoredBands:
    sizes = {each.values.shape[:2] for each in parts}
    if len(sizes) > 1:
        raise DataError(f"its pages have different sizes: {sorted(sizes)}.")
    joined = np.concatenate([each.values for each in parts], axis=-1)
    return StoredBands(joined, joined.shape[-1])


def _page_of_tiff(page: Any) -> StoredBands:
    try:
        values = page.asarray()
    except (ValueError, NotImplementedError, ImportError) as error:
        if "imagecodecs" in str(error) or isinstance(error, ImportError):
            raise DataError(
                f"it is a TIFF with compression {page.compression.name}, predictor "
                f"{int(page.predictor)} and {page.bitspersample} bits, which needs the package "
                f"imagecodecs: pip install imagecodecs (sslengine[tiff])."
            ) from error
        raise
    if page.imagedepth > 1:
        raise DataError(f"it is a volume of {page.imagedepth} planes: save each as a page or file.")
    samples = page.samplesperpixel
    if samples > 1 and int(page.planarconfig) == 2:
        values = np.moveaxis(values, 0, -1)
    values = values if samples > 1 else values[..., None]
    if values.ndim != 3:
        raise DataError(f"a page of shape {values.shape} is no image.")
    extra = [int(each) for each in page.extrasamples]
    return StoredBands(
        values,
        colours=samples - sum(each in ALPHA for each in extra),
        white_is_zero=int(page.photometric) == WHITE_IS_ZERO,
        opaque=2.0**page.bitspersample - 1 if values.dtype.kind == "u" else 1.0,
        premultiplied=extra[:1] == [1],
    )
