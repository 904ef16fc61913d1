"""`targets_one_hot_default_collator`: for labels that name what is there and what is not."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sslengine.data.augment.transform import Sample
from sslengine.data.batch.collators import Batch, default_collate, only_moves
from sslengine.errors import DataError
from sslengine.registry import register_collator

PRESENT, ABSENT, IGNORED = 1, 0, -1


@register_collator("targets_one_hot_default_collator")
@only_moves("data")
def targets_one_hot_default_collator(batch: Sequence[Sample], num_classes: int) -> Batch:
    """A label is two lists, of classes that an image shows and of those that it does not; in the
    batch it is a vector: 1 for the first, 0 for the second, and -1 for all others.

    num_classes: the length of the vector.
    """
    vectors = [{**sample, "label": [_vector(sample["label"], num_classes)]} for sample in batch]
    collated: Batch = default_collate(vectors)
    return collated


def _vector(labels: Sequence[object], num_classes: int) -> Tensor:
    match labels:
        case [[list() as present, list() as absent]]:
            pass
        case _:
            raise DataError(
                f"targets_one_hot_default_collator takes one image a sample, with a label of two "
                f"lists, of classes that it shows and that it does not; got {labels}."
            )
    vector = torch.full((num_classes,), IGNORED)
    for classes, value in ((present, PRESENT), (absent, ABSENT)):
        if any(not 0 <= each < num_classes for each in classes):
            raise DataError(
                f"targets_one_hot_default_collator: classes must be from 0 to num_classes - 1, "
                f"{num_classes - 1}; got {classes}."
            )
        vector[classes] = value
    return vector
