"""RotNet's pretext task: turn the image; the angle is the label."""

from __future__ import annotations

from typing import ClassVar

import torch
from PIL import Image

from sslengine.data.plan.ops import Op, QuarterTurns, Size, Turn
from sslengine.data.plan.view import size_of
from sslengine.registry import register_transform


@register_transform("ImgRotatePil")
class ImgRotatePil:
    """Turn the image counter-clockwise by label * 360 / num_angles degrees.

    Quarter turns are exact. An image that is not square is turned as a whole: cut to its
    old frame, with black where nothing is, it would give the label away.
    """

    makes_label: ClassVar[bool] = True

    def __init__(self, num_angles: int = 4, num_rotations_per_img: int = 1) -> None:
        if num_angles < 1:
            raise ValueError(f"num_angles: expected 1 or more, got {num_angles}.")
        if num_rotations_per_img != 1:
            raise ValueError(
                f"num_rotations_per_img: an image has one label and so one rotation; expected 1, "
                f"got {num_rotations_per_img}."
            )
        self.num_angles = num_angles

    def __call__(self, image: Image.Image) -> tuple[Image.Image, int]:
        ops, label = self.draw(size_of(image))
        for op in ops:
            image = op.on_pil(image)
        return image, label

    def draw(self, size: Size) -> tuple[list[Op], int]:
        label = int(torch.randint(self.num_angles, (1,)))
        return turned(360 * label / self.num_angles), label


def turned(angle: float) -> list[Op]:
    """Counter-clockwise by so many degrees, from 0 to 360."""
    if angle % 90:
        return [Turn(angle)]
    return [QuarterTurns(int(angle) // 90)] if angle else []
