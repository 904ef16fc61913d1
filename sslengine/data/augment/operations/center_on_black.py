"""The middle of the image, with black around it where it is smaller than asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from PIL import Image
from torchvision.transforms import functional

from sslengine.data.augment.operation import Operation, Size

F: Any = functional  # takes images as well as the tensors that its hints name


@dataclass(frozen=True)
class CenterOnBlack(Operation):
    to: Size

    def on_pil(self, image: Image.Image) -> Any:
        return F.center_crop(image, list(self.to))

    def size(self, before: Size) -> Size:
        return self.to
