"""RotNet's pretext task: turn the image; the angle is the label."""

from __future__ import annotations

import torch
from PIL import Image

from sslengine.data.augment.operation import Operation, Size
from sslengine.data.augment.operations.turn import turned
from sslengine.data.augment.transform import MakesLabel
from sslengine.data.augment.view import size_of
from sslengine.registry import register_transform


@register_transform("ImgRotatePil")
class ImgRotatePil(MakesLabel):
    """Turn the image counter-clockwise by label * 360 / num_angles degrees.

    Quarter turns are exact. An image that is not square is turned as a whole: cut to its
    old frame, with black where nothing is, it would give the label away.
    """

    def __init__(self, num_angles: int = 4, num_rotations_per_img: int = 1) -> None:
        """
        num_angles: the number of labels.
        num_rotations_per_img: 1 alone: an image has one label.
        """
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

    def draw(self, size: Size) -> tuple[list[Operation], int]:
        label = int(torch.randint(self.num_angles, (1,)))
        return turned(360 * label / self.num_angles), label
