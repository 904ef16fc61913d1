"""Lines of Python, for the page of an export, that make the trunk's input of an array.

Other libraries' transforms are for images of 8 bits. Those of more, or of many bands, are arrays,
which torchvision resizes as the run did.
"""

from __future__ import annotations

from sslengine.export.preprocessing import Preprocessing
from sslengine.export.subject import Subject

_ARRAYS = """import numpy as np
import torch
from torchvision import transforms as T
view = T.Compose([
    {steps},
])
def transform(image):
    # Pillow's image or an array, height x width x bands, with the values of the file
    pixels = np.atleast_3d(np.array(image))
    pixels = pixels if pixels.dtype == np.uint8 else pixels.astype(np.float32)
    return view(torch.from_numpy(pixels).permute(2, 0, 1))
"""
_NONE = "# images: as `view` of manifest.json says ({why}), N x {channels} x height x width\n"


def array_code(subject: Subject) -> str:
    given = subject.preprocessing
    if given.besides:
        return _NONE.format(why=given.besides, channels=given.channels)
    return _ARRAYS.format(steps=",\n    ".join(_steps(given, subject.limits)))


def _steps(given: Preprocessing, limits: tuple[float, float] | None) -> list[str]:
    steps = []
    if given.resize is not None:
        # torchvision's "nearest" takes other pixels than Pillow's and the run's
        mode = {"nearest": "nearest-exact"}.get(given.interpolation, given.interpolation)
        steps.append(f'T.Resize({given.resize}, T.InterpolationMode("{mode}"))')
        if limits is not None:
            steps.append(f"T.Lambda(lambda pixels: pixels.clamp({limits[0]}, {limits[1]}))")
    if given.crop is not None:
        steps.append(f"T.CenterCrop({given.crop})")
    steps.append("T.ConvertImageDtype(torch.float32)")  # of 8 bits: from 0 to 1
    return [*steps, f"T.Normalize({given.mean}, {given.std})"]
