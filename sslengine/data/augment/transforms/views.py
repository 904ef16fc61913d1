"""Several views of one image."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from PIL import Image
from torch import Tensor
from torchvision.transforms import RandomResizedCrop

from sslengine.data.augment.drawing import draw_of
from sslengine.data.augment.operation import Operation, Size
from sslengine.data.augment.operations.crop import Crop
from sslengine.data.augment.transform import MakesViews
from sslengine.data.augment.view import size_of
from sslengine.registry import register_transform


@register_transform("ImgReplicatePil")
class ImgReplicatePil(MakesViews):
    """The image `num_times`, for the transforms that follow to make each another view."""

    def __init__(self, num_times: int = 2) -> None:
        """num_times: the number of views."""
        if num_times < 1:
            raise ValueError(f"num_times: expected 1 or more, got {num_times}.")
        self.num_times = num_times

    def __call__(self, image: Any) -> list[Any]:
        """image: a PIL image, an array or a tensor."""
        # Copies, because a transform of the user may draw into the image that it is given.
        copied = image.clone if isinstance(image, Tensor) else image.copy
        return [image, *(copied() for _ in range(self.num_times - 1))]

    def draw(self, size: Size) -> list[list[Operation]]:
        return [[] for _ in range(self.num_times)]

    @staticmethod
    def count_views(num_times: int = 2) -> int:
        return num_times


@register_transform("ImgPilToPatchesAndImage")
class ImgPilToPatchesAndImage(MakesViews):
    """PIRL's input: a crop of the image, then the patches of another crop in random order.

    The second crop is cut into a square grid, column by column, and each patch is a cell
    less PATCH_JITTER pixels a side, at a random place in it.
    """

    PATCH_JITTER: ClassVar[int] = 21

    def __init__(
        self,
        crop_scale_image: Sequence[float] = (0.08, 1.0),
        crop_size_image: int = 224,
        crop_scale_patches: Sequence[float] = (0.6, 1.0),
        crop_size_patches: int = 255,
        permute_patches: bool = True,
        num_patches: int = 9,
    ) -> None:
        """
        crop_scale_image, crop_scale_patches: the least and greatest share of the image's area in
            the crop.
        crop_size_image: the side of the first crop, in pixels.
        crop_size_patches: the side of the crop that is cut into patches, in pixels.
        permute_patches: false: the patches stay in the order of the grid.
        num_patches: a square number.
        """
        self.side = math.isqrt(num_patches)
        self.cell = crop_size_patches // max(1, self.side)
        self.patch = self.cell - self.PATCH_JITTER
        if num_patches < 1 or self.side**2 != num_patches:
            raise ValueError(f"num_patches: expected a square number, got {num_patches}.")
        if self.patch < 1:
            raise ValueError(
                f"crop_size_patches: {crop_size_patches} is too small for {num_patches} patches; "
                f"expected {self.side * (self.PATCH_JITTER + 1)} or more."
            )
        self.permute = permute_patches
        self.crop_image = RandomResizedCrop(crop_size_image, tuple(crop_scale_image))
        self.crop_patches = RandomResizedCrop(crop_size_patches, tuple(crop_scale_patches))

    def __call__(self, image: Image.Image) -> list[Image.Image]:
        (whole,), *patches = self.draw(size_of(image))
        part = patches[0][0].on_pil(image)
        return [whole.on_pil(image), *(patch.on_pil(part) for _, patch in patches)]

    def draw(self, size: Size) -> list[list[Operation]]:
        whole = draw_of(self.crop_image)(size)
        (part,) = draw_of(self.crop_patches)(size)
        patches = self._cells()
        if self.permute:
            order = np.random.permutation(len(patches))  # noqa: NPY002
            patches = [patches[number] for number in order]
        return [whole, *([part, patch] for patch in patches)]

    def _cells(self) -> list[Operation]:
        """Where the patches are in the second crop."""
        jitter = np.random.randint(0, self.PATCH_JITTER, (2, self.side, self.side)).tolist()  # noqa: NPY002
        corners = [
            (column * self.cell + jitter[0][column][row], row * self.cell + jitter[1][column][row])
            for column in range(self.side)
            for row in range(self.side)
        ]
        to = (self.patch, self.patch)
        return [Crop(y, x, *to, to=to) for x, y in corners]

    @staticmethod
    def count_views(**arguments: object) -> int:
        return 1  # patches are another input of the model, not views that share a batch
