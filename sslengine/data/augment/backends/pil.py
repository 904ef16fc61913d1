"""The reference back-end: every operation as Pillow does it, one after the other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from sslengine.data.augment.backends.base import Backend
from sslengine.data.augment.operation import Operation
from sslengine.data.augment.view import Source
from sslengine.registry import register_augment_backend


@register_augment_backend("pil")
class PilBackend(Backend):
    def image(self, source: Source, ops: Sequence[Operation]) -> Image.Image:
        made = self.rendered(source, ops)
        return made if ops else made.copy()

    def tensor(self, source: Source, ops: Sequence[Operation]) -> Tensor:
        pixels = np.array(self.rendered(source, ops))
        return torch.from_numpy(pixels).permute(2, 0, 1).contiguous()

    def rendered(self, source: Source, ops: Sequence[Operation]) -> Image.Image:
        image = source if isinstance(source, Image.Image) else Image.fromarray(source)
        for operation in ops:
            image = operation.on_pil(image)
        return image
