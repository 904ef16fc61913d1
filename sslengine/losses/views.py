"""Rows by view: a batch has the first views of all images first, then all second views, ..."""

from __future__ import annotations

from typing import Any

from torch import Tensor

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
