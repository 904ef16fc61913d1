"""SwAV: crops of an image predict each other's assignment to prototypes.

Caron et al., Unsupervised Learning of Visual Features by Contrasting Cluster Assignments,
2020. With scores s_vbk of crop v of image b and prototype k, and codes q_a made of the scores
of crop a by Sinkhorn over the global batch (losses/sinkhorn.py):

    loss = mean over a in crops_for_assign, crops v != a and images b of
               - sum_k q_abk log softmax_k(s_vb / temperature)

and over the sets of prototypes, if there are several. Scores are ordered by crop: all first
crops, then all second ones. Codes have no gradient, so ranks exchange only each prototype's
sum over images: the mean of their gradients is that of one process.

A small batch cannot cover many prototypes. The queue adds the embeddings of earlier batches,
scored again in every step: each rank holds the whole queue, scores an equal part of it, and
Sinkhorn uses all scores. The queue fills from the first step and is used from `start_iter` on,
also if it is not full.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sslengine.config.facts import RunFacts
from sslengine.config.ranges import above, at_least
from sslengine.distributed.collectives import gather
from sslengine.distributed.ranks import rank, world_size
from sslengine.distributed.sharding import gathered
from sslengine.errors import ConfigError, TrainingError
from sslengine.losses.sinkhorn import power_law, sinkhorn
from sslengine.losses.views import split_views, swapped_prediction
from sslengine.methods.base import Method, Step
from sslengine.models.heads.mlp import WeightNormLinear, check_rows, linear_layers
from sslengine.registry import register_head, register_loss

WHERE = "config.LOSS.swav_loss"
ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "ReLU": partial(nn.ReLU, inplace=True),
    "GELU": nn.GELU,
}


@register_head("swav_head", "swav_head_fsdp")
class SwAVHead(nn.Module):
    """Layers to an embedding of unit length, then scores: dot products with prototypes."""

    def __init__(
        self,
        dims: Sequence[int],
        use_bn: bool,
        num_clusters: Sequence[int],
        use_bias: bool = True,
        return_embeddings: bool = True,
        skip_last_bn: bool = True,
        normalize_feats: bool = True,
        activation_name: str = "ReLU",
        use_weight_norm_prototypes: bool = False,
        normalize_last_layer: bool = False,
    ) -> None:
        """
        dims: widths, beginning with the input's.
        use_bn: batch norm after each layer.
        use_bias: a bias in each layer.
        num_clusters: number of prototypes in each set.
        return_embeddings: the output begins with the embedding, which the loss keeps in a queue.
        normalize_feats: scale embeddings to length 1.
        activation_name: ReLU or GELU.
        use_weight_norm_prototypes: direction and length of a prototype are separate parameters.
        skip_last_bn: no batch norm and no activation after the last layer.
        normalize_last_layer: with use_weight_norm_prototypes, keep their lengths at 1.
        """
        super().__init__()
        if len(dims) < 2:
            raise ConfigError(f"dims: expected two or more widths, got {list(dims)}.")
        if normalize_last_layer and not use_weight_norm_prototypes:
            raise ConfigError(
                "normalize_last_layer: fixes the lengths of weight-normalised prototypes; set "
                f"use_weight_norm_prototypes too, or {WHERE}.normalize_last_layer instead."
            )
        self.in_features = dims[0]
        if activation_name not in ACTIVATIONS:
            raise ConfigError(f"activation_name: expected ReLU or GELU, got {activation_name!r}.")
        self.projection_head = linear_layers(
            dims, use_bn, ACTIVATIONS[activation_name], use_bias=use_bias, plain_last=skip_last_bn
        )
        self.normalize_feats, self.return_embeddings = normalize_feats, return_embeddings
        self.prototypes: list[str] = []
        for index, count in enumerate(num_clusters):
            prototypes: nn.Module = (
                WeightNormLinear(dims[-1], count, learn_lengths=not normalize_last_layer)
                if use_weight_norm_prototypes
                else nn.Linear(dims[-1], count, bias=False)
            )
            self.prototypes.append(f"prototypes{index}")
            self.add_module(self.prototypes[-1], prototypes)

    def forward(self, x: Tensor) -> list[Tensor]:
        """N x C to [embeddings, scores of the first set, ...]."""
        embeddings = self.projection_head(check_rows(x, self.in_features, "swav_head"))
        if self.normalize_feats:
            embeddings = F.normalize(embeddings, dim=1)
        return [embeddings] * self.return_embeddings + self.scores(embeddings)

    def scores(self, embeddings: Tensor) -> list[Tensor]:
        """The scores for each set of prototypes."""
        return [getattr(self, name)(embeddings) for name in self.prototypes]

    @torch.no_grad()
    def normalize_prototypes(self) -> None:
        for name in self.prototypes:
            layer = getattr(self, name)
            if isinstance(layer, WeightNormLinear):
                layer.weight_g.fill_(1.0)
            else:
                layer.weight.copy_(F.normalize(layer.weight, dim=1))


@dataclass
class SwAVQueueOptions:
    # Number of embeddings of earlier batches, over all ranks, for computing codes. 0: none.
    queue_length: int = at_least(0, 0)
    # Updates (optimizer steps) before the queue is used.
    start_iter: int = at_least(0, 0)


@dataclass
class SwAVOptions:
    # Temperature of the predictions; epsilon is that of the codes.
    temperature: float = above(0, 0.1)
    # Of the codes: the temperature of Sinkhorn's iterations.
    epsilon: float = above(0, 0.05)
    # Sinkhorn iterations.
    num_iters: int = at_least(0, 3)
    # Compute codes and loss in float64.
    use_double_precision: bool = False
    # Normalise prototypes to unit length at the start and after every optimizer step.
    normalize_last_layer: bool = True
    # Numbers of the crops from which codes are computed, from 0.
    crops_for_assign: list[int] = field(default_factory=lambda: [0, 1])
    # Number of first updates in which each image is assigned to a single prototype.
    temp_hard_assignment_iters: int = at_least(0, 0)
    # The share of images of prototype k is proportional to 1 / k ** shk_powerlaw. 0: equal shares.
    shk_powerlaw: float = at_least(0, 0.0)
    # Embeddings of earlier batches.
    queue: SwAVQueueOptions = field(default_factory=SwAVQueueOptions)
    # Set from the head.
    embedding_dim: int = 128
    # Set from the head.
    num_prototypes: list[int] = field(default_factory=lambda: [3000])
    # Set from the transforms.
    num_crops: int = 2

    def infer(self, facts: RunFacts) -> None:
        head = facts.head("swav_head")
        if not head.get("return_embeddings", True):
            raise ConfigError(f"{WHERE}: needs the embeddings; set return_embeddings of swav_head.")
        self.num_crops = facts.views_per_image
        self.embedding_dim = head["dims"][-1]
        self.num_prototypes = list(head["num_clusters"])


@register_loss(
    "swav_loss",
    options=SwAVOptions,
    several_views=True,
    crops="crops_for_assign",
    collators=("multicrop_collator", "multicrop_mixup_collator", "cutmixup_collator"),
    heads=("swav_head",),
)
class SwAVLoss(Method):
    def __init__(self, options: SwAVOptions, run: RunFacts) -> None:
        super().__init__()
        self.options = options
        self._heads: tuple[SwAVHead, ...] = ()  # in a tuple, so that they are not submodules
        if options.queue.queue_length:
            # Newest first. Rows of zeros are still empty.
            shape = (len(options.crops_for_assign), options.queue.queue_length)
            self.register_buffer("queue", torch.zeros(*shape, options.embedding_dim))
        else:
            self.queue: Tensor | None = None

    def attach(self, model: nn.Module) -> None:
        self._heads = tuple(each for each in model.modules() if isinstance(each, SwAVHead))
        if len(self._heads) != 1:
            raise ConfigError(
                f"{WHERE}: needs one swav_head in the model; there are {len(self._heads)}."
            )
        self.normalize_prototypes()

    def after_update(self, step: Step) -> None:
        self.normalize_prototypes()

    def normalize_prototypes(self) -> None:
        if self.options.normalize_last_layer:
            for head in self._heads:
                head.normalize_prototypes()

    def forward(self, output: Sequence[Tensor], sample: Any, step: Step) -> Tensor:
        """output: [embeddings, scores, ...] of swav_head, by crop."""
        embeddings, *scores = output
        sets = len(self.options.num_prototypes)
        if len(scores) != sets:
            raise TrainingError(
                f"{WHERE}: expected embeddings and {sets} scores of one swav_head, got "
                f"{len(output)} outputs."
            )
        earlier, counted = self._scores_of_queue(step)
        hard = step.num_updates < self.options.temp_hard_assignment_iters
        losses = [
            self._loss_of_set(each, earlier[index] if earlier else None, counted, hard)
            for index, each in enumerate(scores)
        ]
        if step.train:
            self._enqueue(embeddings.detach())
        return torch.stack(losses).mean()

    def _loss_of_set(
        self, scores: Tensor, earlier: Tensor | None, counted: Tensor | None, hard: bool
    ) -> Tensor:
        """The loss for one set of prototypes. earlier (A, L, K): scores of the queue."""
        options = self.options
        precision = torch.float64 if options.use_double_precision else scores.dtype
        crops = split_views(scores.to(precision), options.num_crops, "swav_loss")
        codes = self._codes(self._select_assigned(crops).detach(), earlier, counted)
        if hard:
            best = codes.argmax(dim=-1, keepdim=True)
            codes = torch.zeros_like(codes).scatter_(-1, best, 1.0)
        log_p = (crops / options.temperature).log_softmax(dim=-1)
        return swapped_prediction(codes, log_p, options.crops_for_assign).to(scores.dtype)

    def _select_assigned(self, crops: Tensor) -> Tensor:
        # Not by an index list, which would be copied to the device.
        return torch.stack([crops[number] for number in self.options.crops_for_assign])

    def _codes(self, scores: Tensor, earlier: Tensor | None, counted: Tensor | None) -> Tensor:
        """Sinkhorn's codes of scores (A, B, K), computed together with the earlier ones."""
        options, images = self.options, scores.shape[1]
        if earlier is not None and counted is not None:
            scores = torch.cat([scores, earlier.to(scores.dtype)], dim=1)
            counted = torch.cat([counted.new_ones(len(counted), images), counted], dim=1)
        power = options.shk_powerlaw
        shares = power_law(scores.shape[-1], power, like=scores) if power else None
        return sinkhorn(scores, options.epsilon, options.num_iters, shares, counted)[:, :images]

    @torch.no_grad()
    def _scores_of_queue(self, step: Step) -> tuple[list[Tensor], Tensor | None]:
        """This rank's part of the queue: scores by set of prototypes, and which rows are filled."""
        if self.queue is None or step.num_updates < self.options.queue.start_iter:
            return [], None
        part = self.queue.tensor_split(world_size(), dim=1)[rank()]
        (head,) = self._heads
        with gathered(head):
            return head.scores(part), part.ne(0).any(dim=-1)

    def _enqueue(self, embeddings: Tensor) -> None:
        """Put the global batch in front of the queue, in the order of a single process."""
        if self.queue is None:
            return
        crops = self._select_assigned(split_views(embeddings, self.options.num_crops, "swav_loss"))
        batch = gather(crops.transpose(0, 1)).rows.transpose(0, 1)
        length = self.queue.shape[1]
        self.queue.copy_(torch.cat([batch, self.queue], dim=1)[:, :length])
