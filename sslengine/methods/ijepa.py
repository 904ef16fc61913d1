"""I-JEPA: from the patches of one block, predict what a teacher makes of other blocks.

Assran et al., Self-Supervised Learning from Images with a Joint-Embedding Predictive Architecture,
2023. With the blocks that `multi_block_collator` draws for each image,

    t = LayerNorm(teacher(image)), without weights    tokens of all patches, after the final norm
    c = trunk(patches of the context)
    p_b = predictor(c, places of target block b)
    loss = mean over images, blocks b, their patches and channels of smooth_l1(p_b - t_b)

smooth_l1(d) = d^2 / 2 where |d| < 1, else |d| - 1/2. The predictor is a narrow vision transformer
on the context and one learned token for each patch of one block, with fixed positions. The teacher
is a momentum copy of the trunk; its momentum rises to 1 along a line. Features are the mean of
its patches.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sslengine.config.ranges import at_least, share
from sslengine.data.batch.masks import MULTI_BLOCK, PATCH_SIZE
from sslengine.methods.base import Method, Step
from sslengine.methods.mae import HiddenPatches, width_problems
from sslengine.methods.whole import EMA, Batch
from sslengine.models.trunks.patches import Grid, patch_grid
from sslengine.models.trunks.tokens import select
from sslengine.models.trunks.vision_transformer import rescale_blocks
from sslengine.models.view_trunk import ViewTrunk
from sslengine.registry import register_loss


@dataclass
class IJepaOptions:
    # The teacher's momentum at the start; it rises to 1 during the run.
    momentum: float = share(0.996)
    # Width of a token in the predictor.
    predictor_dim: int = at_least(1, 384)
    # Blocks of the predictor: 12 for ViT-L and larger networks, 6 for ViT-B.
    predictor_layers: int = at_least(1, 12)
    # Attention heads of each of its blocks; the authors use as many as the trunk has.
    predictor_heads: int = at_least(1, 12)
    # The predictor begins as the authors': a later block adds less (INIT: rescaled of the trunk).
    predictor_rescaled: bool = False

    def check(self) -> Iterator[str]:
        yield from width_problems("predictor", self.predictor_dim, self.predictor_heads)


@register_loss(
    "ijepa_loss",
    options=IJepaOptions,
    collators=(MULTI_BLOCK,),
    trunk_input="shown",
    patch_size=PATCH_SIZE,
)
class IJepaLoss(Method):
    judged_network: ClassVar[str] = "teacher"  # as in the authors' evaluations

    def __init__(self, options: IJepaOptions, trunk: ViewTrunk) -> None:
        super().__init__()
        trunk.take("shown")
        network: Any = trunk.trunk
        self.trunk, self.patch_size = trunk, network.patch_size
        self.teacher = EMA(trunk, options.momentum, "linear", dropout=False)
        self.predictor = BlockPredictor(options, trunk, network.embed_dim)

    def forward(self, batch: Batch, step: Step) -> Tensor:
        images, shown, blocks = (
            batch.views[0], batch.sample["shown"], batch.sample["target_blocks"]
        )  # fmt: skip
        context = self.trunk(images, ["lastPATCH"], shown=shown)["lastPATCH"]
        grid = patch_grid(images, self.patch_size)
        predicted = self.predictor(context, shown, blocks, grid)
        tokens = self.teacher(images, ["lastPATCH"])["lastPATCH"]
        targets = F.layer_norm(tokens, tokens.shape[-1:])
        return F.smooth_l1_loss(predicted, select(targets, blocks.flatten(1)))


class BlockPredictor(HiddenPatches):
    def __init__(self, options: IJepaOptions, trunk: ViewTrunk, outputs: int) -> None:
        width, layers = options.predictor_dim, options.predictor_layers
        super().__init__(trunk, width, layers, options.predictor_heads, outputs)
        nn.init.trunc_normal_(self.hidden_token, std=0.02)
        self.apply(_initialise)
        if options.predictor_rescaled:
            rescale_blocks(self.blocks)

    def forward(self, context: Tensor, shown: Tensor, blocks: Tensor, grid: Grid) -> Tensor:
        """B x K x width, B x K and B x T x L to B x (T * L) x width.

        Each block is predicted by itself, so a sequence has the context and one block.
        """
        positions = self.positions(grid)
        seen = self.embed(context).to(positions.dtype) + positions[shown]
        asked = self.hidden_token + positions[blocks.flatten(0, 1)]
        seen = seen.repeat_interleave(blocks.shape[1], dim=0)
        tokens = self.norm(self.blocks(torch.cat([seen, asked], dim=1)))
        predicted = self.project(tokens[:, seen.shape[1] :])
        of_image: Tensor = predicted.unflatten(0, blocks.shape[:2])
        return of_image.flatten(1, 2)


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=0.02)
        nn.init.zeros_(module.bias)
