"""Labels as one vector: where an image may have several classes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sslengine.data.augment.transform import TakesLabels
from sslengine.registry import register_transform


@register_transform("OneHotEncode")
class OneHotEncode(TakesLabels):
    """Each label, a class or several, becomes a vector with 1 at those and 0 elsewhere."""

    def __init__(self, num_classes: int = 1000) -> None:
        """num_classes: the length of the vector."""
        if num_classes < 1:
            raise ValueError(f"num_classes: expected 1 or more, got {num_classes}.")
        self.num_classes = num_classes

    def __call__(self, label: Any) -> Tensor:
        classes = torch.as_tensor(label, dtype=torch.int64).flatten()
        if len(classes) and not 0 <= int(classes.min()) <= int(classes.max()) < self.num_classes:
            raise ValueError(
                f"labels must be from 0 to num_classes - 1, {self.num_classes - 1}; got "
                f"{classes.tolist()}."
            )
        return torch.zeros(self.num_classes, dtype=torch.int64).index_fill_(0, classes, 1)
