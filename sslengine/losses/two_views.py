"""What losses on two views of an image ask of the run and of the model.

Batches come from `simclr_collator`: first all first views, then all second ones.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from sslengine.config.facts import RunFacts
from sslengine.errors import ConfigError, TrainingError


def expect_two_views(facts: RunFacts, loss: str) -> None:
    """While the config is checked: do the transforms make two views?"""
    if facts.views_per_image != 2:
        raise ConfigError(
            f"{loss} compares two views of an image, and config.DATA.TRAIN.TRANSFORMS make "
            f"{facts.views_per_image}. Begin them with `name: ImgReplicatePil`, `num_times: 2`."
        )


def split_views(output: Any, loss: str) -> Tensor:
    """(2B, D) becomes (2, B, D): the first views of all images, then the second ones."""
    if not isinstance(output, Tensor) or output.ndim != 2 or output.shape[0] % 2:
        raise TrainingError(
            f"{loss} needs one embedding (2B, D) with an even number of rows, the model gave "
            f"{described(output)}. Is DATA.TRAIN.COLLATE_FUNCTION simclr_collator, and does the "
            f"model end in one head?"
        )
    views: Tensor = output.unflatten(0, (2, output.shape[0] // 2))
    return views


def described(output: object) -> str:
    """A model's output, in an error."""
    if isinstance(output, Tensor):
        return f"a tensor of shape {tuple(output.shape)}"
    if isinstance(output, (list, tuple)):
        return f"[{', '.join(described(each) for each in output)}]"
    return type(output).__name__
