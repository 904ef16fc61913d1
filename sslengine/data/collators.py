"""From samples to a batch: `collate(batch) -> {key: [tensor, ...]}`.

The standard train step takes one tensor under each key, so a collator makes one of what
the views of a sample hold. Whatever keys a sample has are carried along.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import default_collate as stack_in_shared_memory

from sslengine.data.transforms.pipeline import Sample
from sslengine.errors import DataError
from sslengine.registry import register_collator

Batch = dict[str, list[Tensor]]


@register_collator("default_collate")
def default_collate(batch: Sequence[Sample]) -> Batch:
    """One tensor for each image of a sample."""
    return {key: [_stack(key, values) for values in zip(*_column(batch, key))] for key in batch[0]}


@register_collator("simclr_collator")
def simclr_collator(batch: Sequence[Sample]) -> Batch:
    """One tensor: the first view of every sample, then the second view of every sample, ..."""
    return {
        key: [_stack(key, [view for views in zip(*_column(batch, key)) for view in views])]
        for key in batch[0]
    }


@register_collator("patch_and_image_collator")
def patch_and_image_collator(batch: Sequence[Sample]) -> Batch:
    """`images`, and `patches`: all of the first sample, all of the second, ..."""
    if len(batch[0]["data"]) < 2:
        raise DataError(
            "patch_and_image_collator found no patches: put ImgPilToPatchesAndImage among the "
            "TRANSFORMS."
        )
    data = _column(batch, "data")
    collated = {
        "images": [_stack("images", [images[0] for images in data])],
        "patches": [_stack("patches", [patch for images in data for patch in images[1:]])],
    }
    for key in batch[0]:
        if key != "data":
            collated[key] = [_stack(key, [values[0] for values in _column(batch, key)])]
    return collated


def _column(batch: Sequence[Sample], key: str) -> list[list[Any]]:
    return [sample[key] for sample in batch]


def _stack(key: str, values: Sequence[Any]) -> Tensor:
    """Numbers or tensors as one tensor, which a loader worker hands over without a copy."""
    first = values[0]
    if isinstance(first, Tensor):
        odd = next((each for each in values if each.shape != first.shape), None)
        if odd is not None:
            raise DataError(
                f"A batch cannot hold {key!r} of different sizes, {tuple(first.shape)} and "
                f"{tuple(odd.shape)}. Let the TRANSFORMS bring all images to one size, "
                f"for example with RandomResizedCrop, or Resize and CenterCrop."
            )
    elif not isinstance(first, (int, float, np.generic, np.ndarray)):
        raise DataError(
            f"A batch is made of tensors, and {key!r} is a {type(first).__name__}. "
            f"Put ToTensor after the transforms that work on images."
        )
    stacked: Tensor = stack_in_shared_memory(list(values))
    return stacked
