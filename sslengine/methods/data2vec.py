"""data2vec (vision): predict the teacher's averaged block outputs at hidden patches.

Baevski et al., data2vec: A General Framework for Self-supervised Learning in Speech, Vision and
Language, 2022. The trunk gets images with hidden patches, the teacher whole images:

    y = LayerNorm(mean over the last top_layers blocks of the teacher's tokens), without weights
    x = the trunk's tokens after its final norm
    loss = mean over hidden patches of all ranks of scale * sum over channels of smooth_l1(x - y)

smooth_l1(d) = d^2 / (2 beta) where |d| < beta, else |d| - beta / 2; with beta 0 it is d^2. The
teacher is a momentum copy of the blocks, along a line from `momentum` to `momentum_end`. Patch
embedding, class token and positions are those of the trunk: in the authors' code only the blocks
are averaged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.nn import functional as F

from sslengine.config.ranges import at_least, share
from sslengine.data.augment.masking import no_room
from sslengine.distributed.collectives import sum_in_place
from sslengine.distributed.ranks import world_size
from sslengine.errors import ConfigError, TrainingError
from sslengine.methods.base import Method, Step
from sslengine.methods.whole import EMA, Batch
from sslengine.models.momentum import Pairs, follow, pairs_of
from sslengine.models.view_trunk import ViewTrunk, parameters_with_trunk
from sslengine.registry import register_loss

NAME = "data2vec_loss"
AVERAGED = ("trunk.blocks.", "trunk.norm.", "trunk.rel_pos_bias.")


@dataclass
class Data2VecOptions:
    # The teacher's momentum at the start.
    momentum: float = share(0.999)
    # The teacher's momentum at the end.
    momentum_end: float = share(0.9998)
    # The teacher's last blocks whose outputs are averaged.
    top_layers: int = at_least(1, 6)
    # Where the loss changes from quadratic to linear; 0: quadratic everywhere.
    beta: float = at_least(0, 2.0)
    # Factor on the loss of a patch; 0: 1 / sqrt(width of a token).
    scale: float = at_least(0, 0.0)


@register_loss(NAME, options=Data2VecOptions, collators=("default_collate",), trunk_input="mask")
class Data2VecLoss(Method):
    def __init__(self, options: Data2VecOptions, trunk: ViewTrunk) -> None:
        super().__init__()
        blocks = len(getattr(trunk.trunk, "blocks", ()))
        if blocks < options.top_layers:
            raise ConfigError(
                f"config.LOSS.{NAME}.top_layers: it is {options.top_layers}, and the trunk has "
                f"{blocks} blocks; {NAME} needs beit, vision_transformer or one of timm's ViTs."
            )
        self.options, self.trunk = options, trunk
        self.top = [f"blocks.{blocks - number}" for number in range(options.top_layers, 0, -1)]
        trunk.take("mask")
        self.teacher = BlocksEMA(trunk, options.momentum, "linear", options.momentum_end, False)

    def forward(self, batch: Batch, step: Step) -> Tensor:
        images, mask = batch.views[0], batch.sample["mask"]
        if why := no_room("images", images, mask.shape[1:], "patch_size of MaskedImageModeling"):
            raise TrainingError(f"{NAME}: {why}")
        output = self.trunk(images, ["lastPATCH"], mask=mask)["lastPATCH"]
        count, width = output.shape[1:]
        layers = self.teacher(images, self.top).values()
        mean: Any = sum(_rows(layer)[:, -count:] for layer in layers) / len(layers)
        apart = _distance(output, F.layer_norm(mean, (width,)), self.options.beta).sum(-1)
        hidden = mask.flatten(1).to(apart.dtype)
        share = sum_in_place(hidden.sum()) / world_size()  # ranks may hide unlike numbers
        loss: Tensor = (apart * hidden).sum() / share.clamp(min=1)
        return loss * (self.options.scale or width**-0.5)


class BlocksEMA(EMA):
    """A copy whose blocks are averaged; the rest is the trunk's."""

    _rest: Pairs

    def after_update(self, step: Step) -> None:
        if self._pairs is None:  # of a new copy
            others = parameters_with_trunk(self.source)
            self._rest = pairs_of(self.module, others, lambda name: not name.startswith(AVERAGED))
        super().after_update(step)
        follow(self._rest, momentum=0.0)


def _rows(layer: Tensor) -> Tensor:
    """Return tokens; timm's ViTs give a map of them."""
    return layer.flatten(2).mT if layer.dim() == 4 else layer


def _distance(output: Tensor, targets: Tensor, beta: float) -> Tensor:
    if beta == 0:
        return F.mse_loss(output, targets, reduction="none")
    return F.smooth_l1_loss(output, targets, reduction="none", beta=beta)
