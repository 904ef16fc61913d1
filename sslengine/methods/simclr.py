"""SimCLR: two views of an image attract, views of different images repel.

Chen et al., A Simple Framework for Contrastive Learning of Visual Representations,
2020, equation 1, over the 2N views of the global batch:

    l_i = -log( exp(s_ip / T) / sum_{k != i} exp(s_ik / T) ),   s = cosine similarity
    loss = mean of l_i over all 2N views

Batches come from `simclr_collator`: first all first views, then all second ones.
Views of other ranks are gathered with gradient, so that the gradient over ranks is
that of one process with the whole batch.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional as F

from sslengine.config.facts import RunFacts
from sslengine.distributed.collectives import gather
from sslengine.errors import ConfigError
from sslengine.losses.info_nce import info_nce
from sslengine.losses.two_views import expect_two_views, split_views
from sslengine.methods.base import Method
from sslengine.registry import register_loss


@dataclass
class SimCLRBuffers:
    """Filled in from the run. The sizes that count are those of the batch itself."""

    world_size: int = 1
    embedding_dim: int = 128
    effective_batch_size: int = 0


@dataclass
class SimCLROptions:
    temperature: float = 0.1
    buffer_params: SimCLRBuffers = field(default_factory=SimCLRBuffers)

    def infer(self, facts: RunFacts) -> None:
        expect_two_views(facts, "simclr_info_nce_loss")
        if self.temperature <= 0:
            raise ConfigError(
                f"config.LOSS.simclr_info_nce_loss.temperature: expected a number above 0, "
                f"got {self.temperature}."
            )
        self.buffer_params.world_size = facts.world_size
        self.buffer_params.effective_batch_size = 2 * facts.global_batch_size


@register_loss("simclr_info_nce_loss", options=SimCLROptions)
class SimCLRLoss(Method):
    def __init__(self, options: SimCLROptions, run: RunFacts) -> None:
        super().__init__()
        self.temperature = options.temperature

    def forward(self, output: Tensor, target: Tensor | None = None) -> Tensor:
        """output: (2B, D), view 0 of all images, then view 1. The target is not used."""
        embeddings = F.normalize(split_views(output, "simclr_info_nce_loss").flatten(0, 1), dim=1)
        candidates, start = gather(embeddings)
        own = torch.arange(start, start + len(embeddings), device=output.device)
        positives = own.roll(len(embeddings) // 2)
        return info_nce(embeddings, candidates, positives, self.temperature, excluded=own)
