"""The rotary positions of DINOv3's vision transformers, made on the device of the trunk.

timm makes them on the host and copies them to the device, in each forward pass. Here they are made
once for each size of the image. Where training moves them at random (`rope_shift_coords`,
`rope_jitter_coords`, `rope_rescale_coords`) they are made each time, and the random numbers are
drawn on the device, as in the authors' code.
"""

from __future__ import annotations

from math import log
from typing import Any

import torch
from timm.layers.pos_embed_sincos import RotaryEmbeddingDinoV3, make_coords_dinov3
from torch import Tensor

# Grids that are kept; of more sizes the earliest is dropped.
KEPT = 8


def make_on_device(network: Any) -> None:
    """Change the rotary positions of the network in place, if it has DINOv3's."""
    rope: Any = getattr(network, "rope", None)
    if type(rope) is RotaryEmbeddingDinoV3:
        rope.__class__ = RotaryPositions
        vars(rope)["made"] = {}


class RotaryPositions(RotaryEmbeddingDinoV3):  # type: ignore[misc]
    made: dict[Any, Tensor]

    def get_embed(self, shape: list[int] | None = None, dtype: Any = None) -> Tensor:
        moved = self.training and self.aug_active
        if shape is None or moved or torch.compiler.is_compiling():  # a graph may not keep tensors
            found: Tensor = super().get_embed(shape)
        else:
            found = self._kept(shape)
        return found if dtype is None else found.to(dtype)

    def _kept(self, shape: list[int]) -> Tensor:
        key = (*shape, self.periods.device, self.periods.dtype)
        if key not in self.made:
            if len(self.made) >= KEPT:
                del self.made[next(iter(self.made))]
            with torch.inference_mode(False):  # training may use it later
                self.made[key] = self._create_embed(shape, no_aug=True)
        return self.made[key]

    def _create_embed(self, feat_shape: list[int], no_aug: bool = False) -> Tensor:
        how = self.normalize_coords, self.grid_indexing, self.grid_offset
        places = make_coords_dinov3(*feat_shape, *how, self.periods.device)
        if self.training and self.aug_active and not no_aug:
            places = self._moved(places)
        return torch.cat(self._get_pos_embed_from_coords(places), dim=-1)

    def _moved(self, places: Tensor) -> Tensor:
        """Draw a shift and a scale for each axis, and a scale for both."""
        if self.shift_coords is not None:
            places = places + places.new_empty(2).uniform_(-self.shift_coords, self.shift_coords)
        for most, axes in ((self.jitter_coords, 2), (self.rescale_coords, 1)):
            if most is not None:
                places = places * places.new_empty(axes).uniform_(-log(most), log(most)).exp()
        return places
