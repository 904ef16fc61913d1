"""CAPI: predict to which clusters a teacher's patches belong, from a part of the image.

Darcet et al., Cluster and Predict Latent Patches for Improved Masked Image Modeling, 2025. With
`shown` and `predicted` patches of each image, drawn by `visible_block_collator`,

    t = teacher(image), of all patches             after the final norm
    s_k = w_k . t / |t| + b_k                      scores of K clusters
    q = Sinkhorn-Knopp(s / target_temp)            over the images of all ranks, for each position;
                                                   1e-8 is added to each sum
    clustering = mean over patches of - sum_k q_k log softmax_k(s / cluster_temp)
    z = predictor(trunk(shown patches), places of predicted patches)
    prediction = mean over predicted patches of - sum_k q_k log softmax_k(g_k cos(z, v_k) / temp)
    loss = prediction + clustering

Nothing but w and b gets a gradient of `clustering`. The authors train them with an optimizer of
their own, of the same kind; here they have multipliers. The predictor is a transformer whose
tokens, one learned token at each predicted place, see the trunk's tokens but not each other; places
are rotations of queries and keys. The teacher is a momentum copy of the trunk; its momentum falls
from 1 and then rises to nearly 1 again.

In the authors' code the two channels of a pair are rotated by unlike angles, one of the row and one
of the column; the paper has rotations. `rotation` chooses. Features are the mean of the teacher's
patches. The authors' encoder is vision_transformer with ROPE: corners_mixed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from timm.layers.drop import DropPath
from timm.layers.mlp import Mlp
from torch import Tensor, nn
from torch.nn import functional as F

from sslengine.config.ranges import above, at_least, choice, share
from sslengine.data.batch.masks import PATCH_SIZE, VISIBLE_BLOCK
from sslengine.errors import ConfigError
from sslengine.losses.sinkhorn import sinkhorn
from sslengine.methods.base import Method, Multiplier, Step
from sslengine.methods.whole import EMA, Batch
from sslengine.models.trunks.patches import Grid, patch_grid
from sslengine.models.trunks.rotations import CornerRotations, rotated
from sslengine.models.trunks.tokens import select
from sslengine.models.view_trunk import ViewTrunk
from sslengine.registry import register_loss

NAME = "capi_loss"


@dataclass
class CapiOptions:
    # Clusters of patches.
    num_clusters: int = at_least(1, 16384)
    # Of the predicted scores.
    student_temp: float = above(0, 0.12)
    # Of the teacher's scores in Sinkhorn-Knopp.
    target_temp: float = above(0, 0.06)
    # Of the teacher's scores, where the clusters are trained.
    cluster_temp: float = above(0, 0.12)
    # Sinkhorn-Knopp iterations.
    sinkhorn_iterations: int = at_least(1, 3)
    # Clusters are assigned evenly at each position; false: over all positions together, so that
    # clusters may become positions.
    positionwise: bool = True
    # Factor on the learning rate, for the clusters.
    clusters_lr: float = at_least(0, 0.5)
    # Factor on the weight decay, for the clusters.
    clusters_weight_decay: float = at_least(0, 0.1)
    # The teacher's lowest momentum.
    momentum: float = share(0.999)
    # The share of the run in which the momentum falls from 1 to that, along a line.
    momentum_warmup: float = share(0.1)
    # Then it rises to 1 along this share of half a cosine.
    momentum_cosine: float = share(0.8)
    # Width of a token in the predictor; 0: that of the trunk.
    predictor_dim: int = at_least(0, 0)
    # Blocks of the predictor.
    predictor_layers: int = at_least(1, 12)
    # Attention heads of each of its blocks.
    predictor_heads: int = at_least(1, 16)
    # Stochastic depth of all its blocks.
    predictor_drop_path: float = share(0.0)
    # How the predictor rotates queries and keys: code: as the authors' code, where the channels of
    # a pair have angles of unlike axes; paper: by one angle for both.
    rotation: str = choice("code", "paper")


@register_loss(
    NAME,
    options=CapiOptions,
    collators=(VISIBLE_BLOCK,),
    trunk_input="shown",
    patch_size=PATCH_SIZE,
)
class CapiLoss(Method):
    judged_network: ClassVar[str] = "teacher"  # as in the authors' last evaluations

    def __init__(self, options: CapiOptions, trunk: ViewTrunk) -> None:
        super().__init__()
        trunk.take("shown")
        network: Any = trunk.trunk
        self.options, self.trunk, self.patch_size = options, trunk, network.patch_size
        self.teacher = SlowEMA(options, trunk)
        width, weight = network.embed_dim, next(network.parameters())
        self.predictor = PatchPredictor(options, width).to(weight)  # its rotations too
        self.head = CosineScores(self.predictor.width, options.num_clusters)
        self.clusters = nn.Linear(width, options.num_clusters)
        nn.init.normal_(self.clusters.weight)
        nn.init.zeros_(self.clusters.bias)

    def multipliers(self) -> Mapping[str, Multiplier]:
        options = self.options
        return {"clusters.*": Multiplier(options.clusters_lr, options.clusters_weight_decay)}

    def forward(self, batch: Batch, step: Step) -> dict[str, Tensor]:
        images, shown, predicted = batch.views[0], batch.sample["shown"], batch.sample["predicted"]
        context = self.trunk(images, ["lastBLK"], shown=shown)["lastBLK"]
        grid = patch_grid(images, self.patch_size)
        scores = self.head(self.predictor(context, shown, predicted, grid))
        q, clustering = self._clustered(images)
        prediction = _cross_entropy(select(q, predicted), scores / self.options.student_temp)
        entropy = torch.special.entr(q).sum(dim=-1).mean()
        return {
            "loss": prediction + clustering, "prediction": prediction, "clustering": clustering,
            "teacher_entropy": entropy,
            # What a target says of the image beyond its position, in nats; on this rank.
            "image_information": torch.special.entr(q.mean(dim=0)).sum(dim=-1).mean() - entropy,
        }  # fmt: skip

    def _clustered(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """(the assignments of all patches, B x L x K; the loss of the clusters)."""
        options, tokens = self.options, self.teacher(images, ["lastPATCH"])["lastPATCH"]
        scores = self.clusters(F.normalize(tokens, dim=-1, eps=1e-7))
        rows = scores.transpose(0, 1) if options.positionwise else scores.flatten(0, 1)
        q = sinkhorn(rows, options.target_temp, options.sinkhorn_iterations, added=1e-8)
        q = q.transpose(0, 1) if options.positionwise else q.view_as(scores)
        return q, _cross_entropy(q, scores / options.cluster_temp)


class SlowEMA(EMA):
    """Its momentum falls from 1 along a line, and rises again along a part of half a cosine."""

    def __init__(self, options: CapiOptions, trunk: ViewTrunk) -> None:
        super().__init__(trunk, options.momentum, dropout=False)
        self.warmup, self.cosine = options.momentum_warmup, options.momentum_cosine

    def _momentum_at(self, where: float) -> float:
        if where < self.warmup:
            share = where / self.warmup
        else:
            after = (where - self.warmup) / max(1 - self.warmup, 1e-9)
            share = (1 + math.cos(math.pi * self.cosine * after)) / 2
        return 1 - (1 - self.momentum) * share


class CosineScores(nn.Module):
    """Cosines to learned directions, each times a learned length."""

    def __init__(self, width: int, count: int) -> None:
        super().__init__()
        self.directions = nn.Parameter(nn.init.trunc_normal_(torch.empty(count, width), std=0.02))
        self.lengths = nn.Parameter(torch.ones(count, 1))

    def forward(self, x: Tensor) -> Tensor:
        weights = self.lengths * F.normalize(self.directions, dim=-1)
        return F.linear(F.normalize(x, dim=-1), weights)


class PatchPredictor(nn.Module):
    def __init__(self, options: CapiOptions, context_width: int) -> None:
        super().__init__()
        self.width = options.predictor_dim or context_width
        wide, left = divmod(self.width, options.predictor_heads)
        if left or wide % 4:
            raise ConfigError(
                f"config.LOSS.{NAME}.predictor_heads: {options.predictor_heads} heads of tokens of "
                f"width {self.width}; the width of a head must be a multiple of 4."
            )
        self.hidden_token = nn.Parameter(torch.empty(1, self.width))
        self.blocks = nn.ModuleList(
            PredictorBlock(self.width, context_width, options)
            for _ in range(options.predictor_layers)
        )
        self.norm = nn.RMSNorm(self.width, eps=1e-5, elementwise_affine=False)
        self.rotations = CornerRotations(wide, mixed=options.rotation == "code")
        nn.init.normal_(self.hidden_token, std=0.02)
        for each in self.modules():
            if isinstance(each, nn.Linear):
                nn.init.xavier_uniform_(each.weight)

    def forward(self, context: Tensor, shown: Tensor, predicted: Tensor, grid: Grid) -> Tensor:
        """B x T x context_width, B x K and B x P to B x P x width. Of T tokens the last K are those
        of the shown patches."""
        here = self.rotations(self.rotations.places(predicted, grid))
        there = self.rotations.rotate_tokens(grid, shown, context.shape[1] - shown.shape[1])
        x = self.hidden_token.expand(*predicted.shape, -1)
        for block in self.blocks:
            x = block(x, context, here, there)
        normed: Tensor = self.norm(x)
        return normed


class PredictorBlock(nn.Module):
    """Attention to the context, then an MLP; no biases."""

    def __init__(self, width: int, context_width: int, options: CapiOptions) -> None:
        super().__init__()
        self.heads = options.predictor_heads
        self.norm1, self.norm2 = (nn.RMSNorm(width, eps=1e-5) for _ in range(2))
        self.q, self.proj = (nn.Linear(width, width, bias=False) for _ in range(2))
        self.k, self.v = (nn.Linear(context_width, width, bias=False) for _ in range(2))
        self.mlp = Mlp(width, 4 * width, bias=False)
        self.drop_path = DropPath(options.predictor_drop_path)

    def forward(self, x: Tensor, context: Tensor, here: Tensor, there: Tensor) -> Tensor:
        """here, there: the rotations of queries and keys."""
        q, k, v = (
            each.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for each in (self.q(self.norm1(x)), self.k(context), self.v(context))
        )
        made = F.scaled_dot_product_attention(rotated(q, here), rotated(k, there), v)
        x = x + self.drop_path(self.proj(made.transpose(1, 2).flatten(2)))
        added: Tensor = x + self.drop_path(self.mlp(self.norm2(x)))
        return added


def _cross_entropy(targets: Tensor, scores: Tensor) -> Tensor:
    return -(targets * scores.log_softmax(dim=-1)).sum(dim=-1).mean()
