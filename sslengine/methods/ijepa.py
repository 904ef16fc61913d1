"""I-JEPA: from the patches of one block, predict what a teacher makes of other blocks.

Assran et al., Self-Supervised Learning from Images with a Joint-Embedding Predictive Architecture,
2023. With the blocks that `multi_block_collator` draws for each image,

    t = LayerNorm(teacher(image)), without weights    tokens of all patches, after the final norm
    c = model(patches of the context)
    p_b = predictor(c, places of target block b)
    loss = mean over images, blocks b, their patches and channels of smooth_l1(p_b - t_b)

smooth_l1(d) = d^2 / 2 where |d| < 1, else |d| - 1/2. The predictor is a narrow vision transformer
on the context and one learned token for each patch of one block, with fixed positions. The teacher
is a momentum copy of the model; its momentum rises to 1 along a line. Features are the mean of
its patches.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from timm.models.vision_transformer import Block
from torch import Tensor, nn
from torch.nn import functional as F

from sslengine.config.facts import RunFacts
from sslengine.config.ranges import at_least, share
from sslengine.data.batch.masks import MULTI_BLOCK, PATCH_SIZE
from sslengine.errors import TrainingError
from sslengine.methods.base import Method, Step
from sslengine.methods.teacher import Teacher
from sslengine.models.trunks.patches import SinePositions, patch_grid
from sslengine.models.trunks.vision_transformer import rescale_blocks
from sslengine.registry import register_loss

NAME = "ijepa_loss"
ROUTE = '["data", {feat_names: [lastBLK], additional_keys: [shown]}]'


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
        if self.predictor_dim % 4 or self.predictor_dim % self.predictor_heads:
            yield (
                f"predictor_dim: {self.predictor_dim} must be a multiple of 4 and of "
                f"predictor_heads, {self.predictor_heads}."
            )


@register_loss(
    NAME,
    options=IJepaOptions,
    collators=(MULTI_BLOCK,),
    inputs=("data", "shown"),
    trunk_input="shown",
    patch_size=PATCH_SIZE,
)
class IJepaLoss(Method):
    judged_network: ClassVar[str] = "teacher"  # as in the authors' evaluations
    predictor: BlockPredictor

    def __init__(self, options: IJepaOptions, run: RunFacts) -> None:
        super().__init__()
        self.options = options
        self.teacher = Teacher(options.momentum, schedule="linear", dropout=False)

    def attach(self, model: nn.Module) -> None:
        trunk: Any = model.trunk
        self.patch_size = trunk.patch_size
        if not hasattr(self, "predictor"):  # later calls come after weights are loaded
            size = trunk.patch_embed.grid_size
            weight = next(trunk.patch_embed.parameters())
            self.predictor = BlockPredictor(self.options, trunk.embed_dim, size).to(weight)

    def forward(self, output: Tensor, sample: Any, step: Step) -> Tensor:
        """output: the tokens of the context's patches, maybe with others before them."""
        images, shown, blocks = self._checked(output, sample)
        grid = patch_grid(images, self.patch_size)
        with step.autocast():
            predicted = self.predictor(output[:, -shown.shape[1] :], shown, blocks, grid)
        tokens: Tensor = self.teacher({"data": images}, step)[:, -grid[0] * grid[1] :]
        targets = F.layer_norm(tokens, tokens.shape[-1:])
        return F.smooth_l1_loss(step.full(predicted), _select(targets, blocks.flatten(1)))

    def _checked(self, output: Any, sample: Any) -> tuple[Tensor, Tensor, Tensor]:
        images, shown = sample["input"]["data"], sample["input"]["shown"]
        if not isinstance(output, Tensor) or output.ndim != 3 or len(output) != len(images):
            raise TrainingError(
                f"{NAME} needs all tokens of the context from a model without heads: "
                f"config.MODEL.MULTI_INPUT_HEAD_MAPPING=[{ROUTE}]."
            )
        return images, shown, sample["target_blocks"]


class BlockPredictor(nn.Module):
    def __init__(self, options: IJepaOptions, width: int, grid: tuple[int, int]) -> None:
        """width: of the trunk's tokens. grid: rows and columns of patches in an image."""
        super().__init__()
        inside = options.predictor_dim
        norm: Any = partial(nn.LayerNorm, eps=1e-6)
        self.positions = SinePositions(grid, inside)
        self.embed = nn.Linear(width, inside)
        self.hidden_token = nn.Parameter(torch.zeros(1, 1, inside))
        self.blocks = nn.Sequential(
            *(
                Block(inside, options.predictor_heads, qkv_bias=True, norm_layer=norm)
                for _ in range(options.predictor_layers)
            )
        )
        self.norm = norm(inside)
        self.project = nn.Linear(inside, width)
        nn.init.trunc_normal_(self.hidden_token, std=0.02)
        self.apply(_initialise)
        if options.predictor_rescaled:
            rescale_blocks(self.blocks)

    def forward(
        self, context: Tensor, shown: Tensor, blocks: Tensor, grid: tuple[int, int]
    ) -> Tensor:
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


def _select(tokens: Tensor, places: Tensor) -> Tensor:
    return tokens.gather(1, places.unsqueeze(-1).expand(-1, -1, tokens.shape[-1]))


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=0.02)
        nn.init.zeros_(module.bias)
