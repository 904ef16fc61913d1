"""SimCLR: two views of an image attract, views of different images repel.

Chen et al., A Simple Framework for Contrastive Learning of Visual Representations,
2020, equation 1, over the 2N views of the global batch:

    l_i = -log( exp(s_ip / T) / sum_{k != i} exp(s_ik / T) ),   s = cosine similarity
    loss = mean of l_i over all 2N views

With more than two views, as in the appendix of SwAV (Caron et al., 2020), each other view is the
positive once; the remaining views of the same image are not negatives:

    l_i = mean over p of -log( exp(s_ip / T) / (exp(s_ip / T) + sum over k of other images) )

Batches have the first views of all images first, then the second views, and so on.
Views of other ranks are gathered with gradient, so the gradient over ranks equals that of one
process with the global batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from sslengine.config.facts import RunFacts
from sslengine.config.ranges import above
from sslengine.distributed.collectives import gather
from sslengine.losses.info_nce import info_nce
from sslengine.losses.views import split_views
from sslengine.methods.base import Method
from sslengine.registry import register_loss

NAME = "simclr_info_nce_loss"
MULTI_CROP = "multicrop_simclr_info_nce_loss"


@dataclass
class SimCLROptions:
    # Similarities are divided by it.
    temperature: float = above(0, 0.1)


@dataclass
class MultiCropSimCLROptions(SimCLROptions):
    # Set from the transforms.
    num_crops: int = 2

    def infer(self, facts: RunFacts) -> None:
        self.num_crops = facts.views_per_image


@register_loss(NAME, options=SimCLROptions, views=2)
class SimCLRLoss(Method):
    name, views = NAME, 2

    def __init__(self, options: SimCLROptions, run: RunFacts) -> None:
        super().__init__()
        self.temperature = options.temperature
        # Made at the first batch of a size, and used for the others.
        self._pairs_of: tuple[Any, Sequence[tuple[Tensor, Tensor]]] = (None, ())

    def forward(self, output: Tensor, target: Tensor | None = None) -> Tensor:
        """output: (views x B, D), view 0 of all images, then view 1. The target is not used."""
        images = split_views(output, self.views, self.name).shape[1]
        embeddings = F.normalize(output, dim=1)
        candidates, start = gather(embeddings)
        pairs = self._pairs(images, start, output.device)
        return info_nce(embeddings, candidates, pairs, self.temperature)

    def _pairs(
        self, images: int, start: int, device: torch.device
    ) -> Sequence[tuple[Tensor, Tensor]]:
        """Return the index of each anchor's positive in each other view, and excluded indices."""
        key = (images, start, device, torch.is_inference_mode_enabled())
        known, pairs = self._pairs_of
        if key != known:
            itself = torch.arange(start, start + self.views * images, device=device)
            views = [itself, *(itself.roll(view * images) for view in range(1, self.views))]
            pairs = [
                (views[view], torch.stack([*views[:view], *views[view + 1 :]], dim=1))
                for view in range(1, self.views)
            ]
            self._pairs_of = key, pairs
        return pairs


@register_loss(
    MULTI_CROP,
    options=MultiCropSimCLROptions,
    several_views=True,
    collators=("multicrop_collator",),
)
class MultiCropSimCLRLoss(SimCLRLoss):
    name = MULTI_CROP

    def __init__(self, options: MultiCropSimCLROptions, run: RunFacts) -> None:
        super().__init__(options, run)
        self.views = options.num_crops
