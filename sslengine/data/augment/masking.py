"""Which patches of an image a model does not see: blocks, as BEiT and iBOT draw them, or cells."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sslengine.data.augment.image import Size, size_of
from sslengine.data.augment.transform import MakesKeys, expect
from sslengine.registry import register_transform

# How often to try to place a block before the mask is left unchanged.
ATTEMPTS = 10


class _DrawsMask(MakesKeys):
    takes_arrays = True

    draw_mask: Callable[[Size], Tensor]

    def __call__(self, image: Any) -> dict[str, Any]:
        size = image.shape[-2:] if isinstance(image, Tensor) else size_of(image)
        return {"mask": self.draw_mask((size[0], size[1])), "data": image}

    def on_bytes(self, pixels: Tensor) -> dict[str, Any]:
        return self(pixels)


@register_transform("MaskedImageModeling")
class MaskedImageModeling(_DrawsMask):
    """Adds `mask` to the sample, for each image: rows x columns of patches, true where hidden.

    The share of hidden patches is drawn around one of the means; blocks are added until it is
    reached, or none that is left room for is found.
    """

    def __init__(
        self,
        pred_ratio_mean: Sequence[float] = (0.3,),
        pred_ratio_var: Sequence[float] = (0.0,),
        patch_size: int = 16,
        log_aspect_ratio: Sequence[float] = (0.3, 1 / 0.3),
    ) -> None:
        """
        pred_ratio_mean: shares of the patches, of which one is drawn for each image.
        pred_ratio_var: how far each of them varies to both sides.
        patch_size: the side of a patch, in pixels.
        log_aspect_ratio: the least and greatest height of a block by its width. It is drawn
            evenly in its logarithm.
        """
        self.ratios = list(zip(pred_ratio_mean, pred_ratio_var, strict=True))
        for mean, variation in self.ratios:
            within = 0 <= variation <= mean <= 1 - variation
            what = "a share between 0 and 1, also where it varies"
            expect(within, "pred_ratio_mean, pred_ratio_var", what, (mean, variation))
        expect(any(pred_ratio_mean), "pred_ratio_mean", "a share above 0", pred_ratio_mean)
        self.patch_size, self.aspects = patch_size, tuple(log_aspect_ratio)

    def draw_mask(self, size: Size) -> Tensor:
        rows, columns = (side // self.patch_size for side in size)
        mean, variation = random.choice(self.ratios)
        share = random.uniform(mean - variation, mean + variation) if variation else mean
        mask = block_mask(rows, columns, share * rows * columns, self.aspects)
        return torch.from_numpy(mask)


@register_transform("RandomPatchMask")
class RandomPatchMask(_DrawsMask):
    """Adds `mask` to the sample, for each image: rows x columns of patches, true where hidden.

    The image is divided into square cells, of which a share is hidden, as in SimMIM.
    """

    def __init__(self, patch_size: int = 16, cell_size: int = 32, ratio: float = 0.6) -> None:
        """
        patch_size: the side of a patch, in pixels; that of the trunk.
        cell_size: the side of a cell, in pixels; a multiple of patch_size.
        ratio: the share of the cells that is hidden, rounded up.
        """
        whole = cell_size >= 1 and cell_size % patch_size == 0
        expect(whole, "cell_size", f"a multiple of patch_size, {patch_size}", cell_size)
        expect(0 < ratio <= 1, "ratio", "above 0 to 1", ratio)
        self.patch_size, self.cell_size, self.ratio = patch_size, cell_size, ratio

    def draw_mask(self, size: Size) -> Tensor:
        whole = size[0] % self.cell_size == size[1] % self.cell_size == 0
        what = f"an image that cells of {self.cell_size} pixels divide (crop it, or set cell_size)"
        expect(whole, "RandomPatchMask", what, size)
        rows, columns = (side // self.cell_size for side in size)
        hidden = torch.randperm(rows * columns)[: math.ceil(rows * columns * self.ratio)]
        cells = torch.zeros(rows * columns, dtype=torch.bool).index_fill(0, hidden, True)
        times = self.cell_size // self.patch_size
        return cells.view(rows, columns).repeat_interleave(times, 0).repeat_interleave(times, 1)


def block_mask(
    rows: int,
    columns: int,
    wanted: float,
    aspects: tuple[float, ...],
    least: float | None = None,
    most: float = math.inf,
    draw: Any = random,
) -> NDArray[np.bool_]:
    """Draw blocks that hide so many patches, or somewhat fewer.

    least, most: patches of a block; by default the least is that of a third of the shorter side.
    draw: a random.Random; by default Python's global stream.
    """
    mask = np.zeros((rows, columns), dtype=bool)
    least = (min(rows, columns) // 3) ** 2 if least is None else least
    while (room := min(wanted - mask.sum(), most)) > 0:
        if not _add_block(mask, room, aspects, least, draw):
            break
    return mask


def no_room(what: str, images: Tensor, grid: Sequence[int], key: str) -> str:
    """Say why no block can be hidden in these images; "" if one can. key: of a patch's size."""
    if min(grid) >= 2:
        return ""
    height, width = images.shape[-2:]
    return (
        f"{what} of {height} x {width} pixels have {grid[0]} x {grid[1]} patches, and none can be "
        f"hidden: blocks need 2 x 2 or more. Lower {key} (and of the trunk), or raise the size of "
        f"the views in config.DATA.TRAIN.TRANSFORMS."
    )


def _add_block(
    mask: NDArray[np.bool_], room: float, aspects: tuple[float, ...], least: float, draw: Any
) -> bool:
    """Hide a block of at most so many more patches; False if none is found."""
    rows, columns = mask.shape
    for _ in range(ATTEMPTS):
        area = draw.uniform(least, room)
        aspect = math.exp(draw.uniform(*map(math.log, aspects)))
        height, width = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if height >= rows or width >= columns:
            continue
        top, left = draw.randint(0, rows - height), draw.randint(0, columns - width)
        block = mask[top : top + height, left : left + width]
        if 0 < block.size - block.sum() <= room:
            block[:] = True
            return True
    return False
