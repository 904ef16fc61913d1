"""Write lines of Python, for the page of an export: an image is opened, and made the trunk's input.

Other libraries' transforms are for images of 8 bits. Those of more, or of many bands, are arrays,
which torchvision resizes as the run did.
"""

from __future__ import annotations

from collections.abc import Sequence

from sslengine.data.pixel_values import PixelRange, parse_colour
from sslengine.export.subject import Preprocessing, Subject

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

_ARRAYS = """import numpy as np
import torch
from PIL import Image
from torchvision import transforms as T
view = T.Compose([
    {view},
])
finish = T.Compose([
    {finish},
])
def transform(image):
    # Pillow's image or an array, height x width x bands, with the values of the file
    pixels = np.atleast_3d(np.array(image))
    if isinstance(image, Image.Image) and pixels.dtype == np.uint8:
        return finish(T.functional.pil_to_tensor(view(image)))
    pixels = pixels if pixels.dtype == np.uint8 else pixels.astype(np.float32)
    return finish(view(torch.from_numpy(pixels).permute(2, 0, 1)))
"""
_NONE = "# images: as `view` of manifest.json says ({why}), N x {channels} x height x width\n"

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
    """Return the range that the run brings to 8 bits, for images of more."""
    options = subject.image_options
    return None if options.IMAGE_MODE == "stored" else PixelRange.parse(options.PIXEL_RANGE)


def eight_bits_code(subject: Subject) -> str:
    """Write `eight_bits`; "" if the run does not bring images to 8 bits."""
    found = pixel_range(subject)
    if found is None:
        return ""
    given = subject.image_options.PIXEL_RANGE
    made = _composite_code(subject)
    return _EIGHT_BITS.format(
        given=given if isinstance(given, str) else list(given),
        limits=_LIMITS[found.kind].format(low=found.low, high=found.high),
        visible="[values[..., -1] > 0]" if "composite" in made else "",
        made=made,
    )


def _composite_code(subject: Subject) -> str:
    """Write what makes of `image` what the run sees by TRANSPARENT."""
    colour = parse_colour(subject.image_options.TRANSPARENT)
    made = "image" if colour is None else _ON_COLOUR.format(colour)
    return f'{made}.convert("{subject.image_mode}")'


def opening(subject: Subject) -> str:
    """Write what makes `image`, which the transform of the page takes."""
    if subject.image_mode == "stored":
        return _OPEN if subject.channels == 1 else _OPEN_BANDS
    if pixel_range(subject):
        return _OPEN.replace("Image.open(", "eight_bits(Image.open(").replace('png")', 'png"))')
    return f"{_OPEN}image = {_composite_code(subject)}\n"


def torch_example(subject: Subject, output: str = "") -> str:
    """Write the features of one image, after `transform_code`. output: the attribute with them."""
    if subject.preprocessing.besides:
        return ""
    return f"{opening(subject)}features = model(transform(image)[None]){output}\n"


def transform_code(subject: Subject) -> str:
    """Write `transform`, with torchvision, which needs no more than the run's image."""
    given, normalise = subject.preprocessing, "T.Normalize({0.mean}, {0.std})"
    if given.besides:
        return _NONE.format(why=given.besides, channels=given.channels)
    if subject.image_mode == "stored":
        # torchvision's "nearest" takes other pixels than Pillow's and the run's
        mode = {"nearest": "nearest-exact"}.get(given.interpolation, given.interpolation)
        # ConvertImageDtype makes 8 bits numbers from 0 to 1.
        finish = ["T.ConvertImageDtype(torch.float32)", normalise.format(given)]
        if subject.limits is not None and given.resize is not None:
            low, high = subject.limits
            finish.insert(0, f"T.Lambda(lambda pixels: pixels.clamp({low}, {high}))")
        return _ARRAYS.format(view=_join(_resize(given, mode)), finish=_join(finish))
    steps = [*_resize(given, given.interpolation), "T.ToTensor()", normalise.format(given)]
    return eight_bits_code(subject) + _TRANSFORM.format(steps=_join(steps))


def _join(steps: Sequence[str]) -> str:
    return ",\n    ".join(steps)


def _resize(given: Preprocessing, interpolation: str) -> list[str]:
    steps = []
    if given.resize is not None:
        steps.append(f'T.Resize({given.resize}, T.InterpolationMode("{interpolation}"))')
    if given.crop is not None:
        steps.append(f"T.CenterCrop({given.crop})")
    return steps


def view_code(subject: Subject, dtype: str) -> str:
    """Write `view`, with Pillow and numpy: resized and cropped, and not normalised."""
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
    return f"import numpy as np\nfrom PIL import Image\n{code}{_view_body(subject)}"


def _view_body(subject: Subject) -> str:
    """Write what `view` does: arrays are resized in floats, band by band, as the run does."""
    if subject.image_mode != "stored":
        return _OF_PICTURE
    if subject.has_bytes:
        whole = "np.rint(np.clip(pixels, 0, 255)).astype(np.uint8)"
        return _OF_BYTES + _OF_ARRAY.format(pixels=whole)
    limits = subject.limits
    clipped = "pixels" if limits is None else f"np.clip(pixels, {limits[0]}, {limits[1]})"
    return _OF_ARRAY.format(pixels=clipped)
