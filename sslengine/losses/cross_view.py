"""Predict one view's projection from the other view: the cosine between the two.

Rows come in the order of `simclr_collator`: first all first views, then all second ones.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn import functional as F

from sslengine.errors import TrainingError
from sslengine.losses.views import described


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
