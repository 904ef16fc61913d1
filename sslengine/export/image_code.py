"""Write lines of Python, for the page of an export: an image is opened, and made the trunk's input.

Only of pictures of 8 bits: for others the page says where it is described what the run does.
"""

from __future__ import annotations

from sslengine.data.pixel_values import parse_colour
from sslengine.export.subject import Subject

_TRANSFORM = """from torchvision import transforms as T
transform = T.Compose([
    {steps},
])
"""
_NONE = "# images: as `view` of manifest.json says ({why}), N x {channels} x height x width\n"
_OPEN = 'from PIL import Image\nimage = Image.open("image.png")\n'
_ON_COLOUR = 'Image.alpha_composite(Image.new("RGBA", image.size, {}), image.convert("RGBA"))'

_VIEW = """import numpy as np
from PIL import Image
def view(image):
{steps}    # {height} x {width} x {channels}, uint8
    return np.atleast_3d(np.asarray(image))
"""
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


def opening(subject: Subject) -> str:
    """Write what makes `image`, as the run sees it by IMAGE_MODE and TRANSPARENT."""
    colour = parse_colour(subject.image_options.TRANSPARENT)
    made = "image" if colour is None else _ON_COLOUR.format(colour)
    return f'{_OPEN}image = {made}.convert("{subject.image_mode}")\n'


def torch_example(subject: Subject, output: str = "") -> str:
    """Write the features of one image, after `transform_code`. output: the attribute with them."""
    if subject.besides:
        return ""
    return f"{opening(subject)}features = model(transform(image)[None]){output}\n"


def transform_code(subject: Subject) -> str:
    """Write `transform`, with torchvision, which needs no more than the run's image."""
    given = subject.preprocessing
    if subject.besides:
        return _NONE.format(why=subject.besides, channels=given.channels)
    steps = []
    if given.resize is not None:
        steps.append(f'T.Resize({given.resize}, T.InterpolationMode("{given.interpolation}"))')
    if given.crop is not None:
        steps.append(f"T.CenterCrop({given.crop})")
    steps += ["T.ToTensor()", f"T.Normalize({given.mean}, {given.std})"]
    return _TRANSFORM.format(steps=",\n    ".join(steps))


def view_code(subject: Subject) -> str:
    """Write `view`, with Pillow and numpy: resized and cropped, and not normalised."""
    given = subject.preprocessing
    if subject.besides:
        return _NONE.format(why=f"{subject.besides}, not normalised", channels=given.channels)
    height, width = subject.images.shape[-2:]
    steps, filter = "", given.interpolation.upper()
    if isinstance(given.resize, int):
        steps = _SHORTER.format(resize=given.resize, filter=filter)
    elif given.resize is not None:
        steps = _SQUASHED.format(*given.resize, filter=filter)
    if given.crop is not None:
        steps += _CROP.format(height=height, width=width)
    return _VIEW.format(steps=steps, height=height, width=width, channels=subject.channels)
