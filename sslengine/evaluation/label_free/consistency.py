"""How many of an image's K nearest images stay, by the cosine of the features.

view_consistency        of two augmented views of each image, among the same views of all images
checkpoint_consistency  of two checkpoints: how much the neighbourhoods still move
"""

from __future__ import annotations

import torch
from torch import Tensor

from sslengine.evaluation.label_free.metric import Undefined, register_metric
from sslengine.evaluation.label_free.spectrum import directions, expect_different
from sslengine.evaluation.neighbours import nearest

K = 10


@register_metric("view_consistency", best="high")
def view_consistency(views: Tensor) -> float:
    if views.shape[1] < 2:
        raise Undefined("it needs 2 views of each image")
    return _shared(views[:, 0], views[:, 1])


@register_metric("checkpoint_consistency")
def checkpoint_consistency(features: Tensor, previous: Tensor) -> float:
    if len(features) != len(previous):
        raise Undefined("the checkpoints have features of different images")
    return _shared(features, previous)


def _shared(some: Tensor, others: Tensor) -> float:
    if len(some) <= K + 1:
        raise Undefined(f"it needs more than {K + 1} images, there are {len(some)}")
    first, second = (_neighbours(each) for each in (some, others))
    both = torch.cat([first, second], dim=1).sort(dim=1).values
    return (both[:, 1:] == both[:, :-1]).sum().item() / first.numel()


def _neighbours(features: Tensor) -> Tensor:
    rows = directions(features)
    expect_different(rows)
    # On the sphere the order by distance is the one by cosine.
    return nearest(rows, K).sort(dim=1).values
