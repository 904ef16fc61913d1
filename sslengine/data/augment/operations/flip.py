"""Left becomes right."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from PIL import Image
from torchvision.transforms import RandomHorizontalFlip

from sslengine.data.augment.arrays import Limits, Pixels
from sslengine.data.augment.draws import Draw, by_chance, draw_for
from sslengine.data.augment.operation import Operation, Planes
from sslengine.data.augment.stream import as_compared


@dataclass(frozen=True)
class FlipLeftRight(Operation):
    def on_pil(self, image: Image.Image) -> Image.Image:
        return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)

    def on_array(self, pixels: Pixels, limits: Limits) -> Pixels:
        return pixels[:, ::-1]

    def on_planes(self, planes: Planes) -> Planes:
        # A copy: of one column, a view with a negative stride counts as contiguous.
        flipped: Planes = planes[:, :, ::-1].copy()
        return flipped


@draw_for(RandomHorizontalFlip)
def _random_flip(transform: Any) -> Draw:
    return partial(by_chance, as_compared(transform.p), FlipLeftRight())
