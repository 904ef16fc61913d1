"""Lines of Python, for the page of an export: an image is opened, and made the network's input."""

from __future__ import annotations

from typing import Any

from sslengine.data.pixel_values import PixelRange, parse_colour
from sslengine.export.array_code import array_code, listed, resized_and_cropped
from sslengine.export.subject import Subject

_TRANSFORM = """from torchvision import transforms as T
transform = T.Compose([
    {steps},
])
"""
_EIGHT_BITS = """import numpy as np
from PIL import Image
def eight_bits(image):
    # as the run: PIXEL_RANGE {given}. Pillow's image or an array; 8 bits do not change
    values = np.array(image)
    if values.dtype.itemsize > 1:
        has_alpha = values.dtype.kind == "u" and values.shape[2:] in ((2,), (4,))
        seen = values[..., :-1]{visible} if has_alpha else values
        low, high = {limits}
        made = (np.clip(values.astype(np.float64), low, high) - low) * 255 / ((high - low) or 1.0)
        if has_alpha:
            made[..., -1] = values[..., -1] * (255 / np.iinfo(values.dtype).max)
        values = np.rint(made).astype(np.uint8)
    image = image if getattr(image, "mode", "I")[0] not in "IF" else Image.fromarray(values)
    return {made}
"""
_LIMITS = {
    "fixed": "{low}, {high}",
    "percentile": "np.percentile(seen, [{low}, {high}])",
    "image": "float(seen.min()), float(seen.max())",
    "type": "float(np.iinfo(values.dtype).min), float(np.iinfo(values.dtype).max)",
}
_OPEN = 'from PIL import Image\nimage = Image.open("image.png")\n'
_ON_COLOUR = 'Image.alpha_composite(Image.new("RGBA", image.size, {}), image.convert("RGBA"))'
_OPEN_BANDS = 'import tifffile\nimage = tifffile.imread("image.tif")\n'

_RESIZED = "def resized(image):\n"
_SHORTER = """    short = min(image.size)
    sides = [int({resize} * side / short) for side in image.size]
    image = image.resize(sides, Image.Resampling.{filter})
"""
_SQUASHED = "    image = image.resize(({1}, {0}), Image.Resampling.{filter})\n"
# torchvision halves what it cuts off to the even number, and what it adds to the smaller one.
_CROP = """    margins = image.width - {width}, image.height - {height}
    left, top = (round(each / 2) if each > 0 else -(-each // 2) for each in margins)
    image = image.crop((left, top, left + {width}, top + {height}))
"""
_VIEW = """    return np.atleast_3d(np.asarray(image))
def view(image):
    # {shape}
"""
_OF_PICTURE = "    return resized(image)\n"
_OF_BYTES = """    if isinstance(image, Image.Image):
        return resized(image)
"""
_OF_ARRAY = """    bands = np.moveaxis(np.atleast_3d(np.array(image, np.float32)), 2, 0)
    pixels = np.concatenate([resized(Image.fromarray(each)) for each in bands], 2)
    return {pixels}
"""


def pixel_range(subject: Subject) -> PixelRange | None:
    """Of images of more than 8 bits that the run brings to 8."""
    options = subject.image_options
    return None if options.IMAGE_MODE == "stored" else PixelRange.parse(options.PIXEL_RANGE)


def eight_bits_code(subject: Subject) -> str:
    """`eight_bits`; "" if the run does not bring images to 8 bits."""
    found = pixel_range(subject)
    if found is None:
        return ""
    limits = _LIMITS[found.kind].format(low=found.low, high=found.high)
    given = subject.image_options.PIXEL_RANGE
    made = _composite_code(subject)
    visible = "[values[..., -1] > 0]" if "composite" in made else ""
    return _EIGHT_BITS.format(given=_plain(given), limits=limits, visible=visible, made=made)


def _composite_code(subject: Subject) -> str:
    """Return the code that makes of `image` what the run sees by TRANSPARENT."""
    colour = parse_colour(subject.image_options.TRANSPARENT)
    made = "image" if colour is None else _ON_COLOUR.format(colour)
    return f'{made}.convert("{subject.image_mode}")'


def _plain(given: Any) -> Any:
    return given if isinstance(given, str) else list(given)


def opening(subject: Subject) -> str:
    """`image`: what the transform of the page takes."""
    if subject.image_mode == "stored":
        return _OPEN if subject.channels == 1 else _OPEN_BANDS
    if pixel_range(subject):
        return _OPEN.replace("Image.open(", "eight_bits(Image.open(").replace('png")', 'png"))')
    return f"{_OPEN}image = {_composite_code(subject)}\n"


def torch_example(subject: Subject, output: str = "") -> str:
    """The features of one image, after `transform_code`; output: the attribute that has them."""
    if subject.preprocessing.besides:
        return ""
    return f"{opening(subject)}features = model(transform(image)[None]){output}\n"


def transform_code(subject: Subject) -> str:
    """`transform`, with torchvision, which needs no more than the run's image."""
    if subject.image_mode == "stored" or subject.preprocessing.besides:
        return array_code(subject)
    given = subject.preprocessing
    view = resized_and_cropped(given, given.interpolation)
    steps = [*view, "T.ToTensor()", f"T.Normalize({given.mean}, {given.std})"]
    return eight_bits_code(subject) + _TRANSFORM.format(steps=listed(steps))


def view_code(subject: Subject, dtype: str) -> str:
    """`view`, with Pillow and numpy: resized and cropped, and not normalised."""
    given = subject.preprocessing
    height, width = subject.images.shape[-2:]
    code, filter = _RESIZED, given.interpolation.upper()
    if isinstance(given.resize, int):
        code += _SHORTER.format(resize=given.resize, filter=filter)
    elif given.resize is not None:
        code += _SQUASHED.format(*given.resize, filter=filter)
    if given.crop is not None:
        code += _CROP.format(height=height, width=width)
    code += _VIEW.format(shape=f"{height} x {width} x {subject.channels}, {dtype}")
    return f"import numpy as np\nfrom PIL import Image\n{code}{_made(subject)}"


def _made(subject: Subject) -> str:
    """What `view` does: arrays are resized in floats, band by band, as the run does."""
    if subject.image_mode != "stored":
        return _OF_PICTURE
    if subject.has_bytes:
        whole = "np.rint(np.clip(pixels, 0, 255)).astype(np.uint8)"
        return _OF_BYTES + _OF_ARRAY.format(pixels=whole)
    limits = subject.limits
    clipped = "pixels" if limits is None else f"np.clip(pixels, {limits[0]}, {limits[1]})"
    return _OF_ARRAY.format(pixels=clipped)
