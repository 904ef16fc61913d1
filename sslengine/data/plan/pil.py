"""The reference back-end: every operation as Pillow does it, one after the other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from sslengine.data.plan.backend import Backend
from sslengine.data.plan.ops import Op
from sslengine.data.plan.view import Source
from sslengine.registry import register_augment_backend


@register_augment_backend("pil")
class PilBackend(Backend):
    def image(self, source: Source, ops: Sequence[Op]) -> Image.Image:
        return _applied(ops, source) if ops else _as_image(source).copy()

    def tensor(self, source: Source, ops: Sequence[Op]) -> Tensor:
        pixels = np.array(_applied(ops, source))
        return torch.from_numpy(pixels).permute(2, 0, 1).contiguous()

    def rendered(self, source: Source, ops: Sequence[Op]) -> Source:
        return _applied(ops, source)


def _applied(ops: Sequence[Op], source: Source) -> Image.Image:
    image = _as_image(source)
    for op in ops:
        image = op.on_pil(image)
    return image


def _as_image(source: Source) -> Image.Image:
    return source if isinstance(source, Image.Image) else Image.fromarray(source)
