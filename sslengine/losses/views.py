"""Rows by view, and predicting one view of an image from another.

A batch has the first views of all images first, then all second views, ...
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from sslengine.errors import TrainingError


def split_views(output: Any, views: int, loss: str) -> Tensor:
    """Reshape (views * B, ...) to (views, B, ...); raise TrainingError where that cannot be."""
    if isinstance(output, Tensor) and output.ndim > 1 and views and len(output) % views == 0:
        split: Tensor = output.unflatten(0, (views, -1))
        return split
    raise TrainingError(
        f"{loss} needs a row for each of {views} views of every image; the model returned "
        f"{described(output)}. See config.MODEL.HEAD.PARAMS and DATA.TRAIN.COLLATE_FUNCTION."
    )


def described(output: object) -> str:
    """Return the shapes of a model's output, for an error message."""
    if isinstance(output, Tensor):
        return f"a tensor of shape {tuple(output.shape)}"
    if isinstance(output, (list, tuple)):
        return f"[{', '.join(described(each) for each in output)}]"
    return type(output).__name__


def projection_and_prediction(output: Any, loss: str) -> tuple[Tensor, Tensor]:
    """Projection and prediction of both views, (2B, D) each, the output of `predictor_head`."""
    match output:
        case [Tensor() as projection, Tensor() as prediction] if (
            projection.ndim == 2
            and projection.shape == prediction.shape
            and projection.shape[0] % 2 == 0
        ):
            return projection, prediction
    raise TrainingError(
        f"{loss} needs [projection, prediction] of two views, (2B, D) each; the model returned "
        f"{described(output)}. Is predictor_head the only head in config.MODEL.HEAD.PARAMS, and "
        f"the COLLATE_FUNCTION simclr_collator?"
    )


def cross_view_cosine(predictions: Tensor, targets: Tensor) -> Tensor:
    """The mean cosine between each prediction (2B, D) and the target of the other view."""
    of_other_view = targets.roll(targets.shape[0] // 2, dims=0)
    return F.cosine_similarity(predictions, of_other_view, dim=1).mean()


def swapped_prediction(targets: Tensor, log_p: Tensor, sources: Sequence[int]) -> Tensor:
    """Return the mean over targets a, crops v other than a's own, and images b of
    - sum_k target_abk log p_vbk.

    targets (A, B, K): distributions, computed from the crops with the numbers `sources`.
    log_p (V, B, K): the logarithm of each crop's prediction.
    """
    crops, images = log_p.shape[:2]
    # One matrix product for all pairs, without copies of targets and log_p: K is large.
    pairs = torch.einsum("abk,vbk->av", targets, log_p)
    own = torch.zeros_like(pairs, dtype=torch.bool)
    for row, source in enumerate(sources):
        own[row, source].fill_(True)  # `= True` would copy a host tensor to the device
    return -pairs.masked_fill(own, 0.0).sum() / (len(sources) * (crops - 1) * images)
