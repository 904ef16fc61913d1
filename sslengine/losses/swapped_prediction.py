"""From one crop of an image predict what was made of another one.

mean over targets a, crops v other than a's own, and images b of
    - sum_k target_abk log p_vbk
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sslengine.config.facts import RunFacts
from sslengine.errors import ConfigError
from sslengine.losses.views import expect_crops


def swapped_prediction(targets: Tensor, log_p: Tensor, sources: Sequence[int]) -> Tensor:
    """The mean cross entropy.

    targets (A, B, K): distributions, made from the crops `sources`, one number each.
    log_p (V, B, K): the logarithms of what each crop predicts.
    """
    crops, images = log_p.shape[:2]
    # All pairs as one product of matrices; K is large, so no copy of targets or log_p is made.
    pairs = torch.einsum("abk,vbk->av", targets, log_p)
    own = torch.zeros_like(pairs, dtype=torch.bool)
    for row, source in enumerate(sources):
        own[row, source].fill_(True)  # `= True` would copy a tensor of the host to the device
    return -pairs.masked_fill(own, 0.0).sum() / (len(sources) * (crops - 1) * images)


def check_crops(
    where: str, key: str, sources: Sequence[int], facts: RunFacts, collators: Sequence[str]
) -> None:
    """Raise ConfigError unless the run makes the crops that `<where>.<key>` names."""
    crops = facts.views_per_image
    expect_crops(facts, where, collators)
    if not sources or len(set(sources)) < len(sources) or not set(sources) <= set(range(crops)):
        raise ConfigError(
            f"{where}.{key}: expected different numbers from 0 to {crops - 1}, one for each crop "
            f"that counts; got {list(sources)}."
        )
