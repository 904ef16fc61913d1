"""Lines of Python, for the page of an export, that make the trunk's input of an array.

Other libraries' transforms are for images of 8 bits. Those of more, or of many bands, are arrays,
which torchvision resizes as the run did.
"""

from __future__ import annotations

from collections.abc import Sequence

from sslengine.export.preprocessing import Preprocessing
from sslengine.export.subject import Subject

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


def array_code(subject: Subject) -> str:
    given = subject.preprocessing
    if given.besides:
        return _NONE.format(why=given.besides, channels=given.channels)
    return _ARRAYS.format(view=listed(_view(given)), finish=listed(_finish(given, subject.limits)))


def listed(steps: Sequence[str]) -> str:
    return ",\n    ".join(steps)


def _view(given: Preprocessing) -> list[str]:
    # torchvision's "nearest" takes other pixels than Pillow's and the run's
    mode = {"nearest": "nearest-exact"}.get(given.interpolation, given.interpolation)
    return resized_and_cropped(given, mode)


def resized_and_cropped(given: Preprocessing, interpolation: str) -> list[str]:
    steps = []
    if given.resize is not None:
        steps.append(f'T.Resize({given.resize}, T.InterpolationMode("{interpolation}"))')
    if given.crop is not None:
        steps.append(f"T.CenterCrop({given.crop})")
    return steps


def _finish(given: Preprocessing, limits: tuple[float, float] | None) -> list[str]:
    clamped = []
    if limits is not None and given.resize is not None:
        clamped = [f"T.Lambda(lambda pixels: pixels.clamp({limits[0]}, {limits[1]}))"]
    # ConvertImageDtype makes 8 bits numbers from 0 to 1.
    converted = "T.ConvertImageDtype(torch.float32)"
    return [*clamped, converted, f"T.Normalize({given.mean}, {given.std})"]
