"""data2vec (vision): predict the teacher's averaged block outputs at hidden patches.

Baevski et al., data2vec: A General Framework for Self-supervised Learning in Speech, Vision and
Language, 2022. The model gets images with hidden patches, the teacher whole images:

    y = LayerNorm(mean over the last top_layers blocks of the teacher's tokens), without weights
    x = the model's tokens after its final norm
    loss = mean over hidden patches of all ranks of scale * sum over channels of smooth_l1(x - y)

smooth_l1(d) = d^2 / (2 beta) where |d| < beta, else |d| - beta / 2; with beta 0 it is d^2. The
teacher is a momentum copy of the blocks, along a line from `momentum` to `momentum_end`. Patch
embedding, class token and positions are those of the model: in the authors' code only the blocks
are averaged.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from sslengine.config.facts import RunFacts
from sslengine.config.ranges import at_least, share
from sslengine.data.augment.masking import no_room
from sslengine.distributed.collectives import sum_in_place
from sslengine.distributed.ranks import world_size
from sslengine.errors import ConfigError, TrainingError
from sslengine.losses.views import described
from sslengine.methods.base import Method, Step
from sslengine.methods.teacher import Teacher
from sslengine.models.model import Model
from sslengine.models.momentum import Pairs, follow, pairs_of
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


@register_loss(NAME, options=Data2VecOptions, inputs=("data", "mask"), trunk_input="mask")
class Data2VecLoss(Method):
    def __init__(self, options: Data2VecOptions, run: RunFacts) -> None:
        super().__init__()
        self.options = options
        self.teacher = _BlocksTeacher(options)

    def forward(self, output: Tensor, sample: Any, step: Step) -> Tensor:
        """output: N x L x D, the tokens of all patches."""
        images, mask = self._checked(output, sample)
        outputs = self.teacher({"data": images}, step)
        layers = outputs if isinstance(outputs, list) else [outputs]
        count, width = output.shape[1:]
        mean: Any = sum(_rows(layer)[:, -count:] for layer in layers) / len(layers)
        targets = F.layer_norm(mean, (width,))
        apart = _distance(output, targets, self.options.beta).sum(-1)
        hidden = mask.flatten(1).to(apart.dtype)
        share = sum_in_place(hidden.sum()) / world_size()  # ranks may hide unlike numbers
        loss: Tensor = (apart * hidden).sum() / share.clamp(min=1)
        return loss * (self.options.scale or width**-0.5)

    def _checked(self, output: Any, sample: Any) -> tuple[Tensor, Tensor]:
        images, mask = sample["input"]["data"], sample["input"]["mask"]
        if not isinstance(output, Tensor) or output.shape[:2] != (len(mask), mask[0].numel()):
            raise TrainingError(
                f"{NAME} needs a token of each patch, N x L x D: the feature lastPATCH of a model "
                f"without heads; the model returned {described(output)}."
            )
        if why := no_room("images", images, mask.shape[1:], "patch_size of MaskedImageModeling"):
            raise TrainingError(f"{NAME}: {why}")
        return images, mask


class _BlocksTeacher(Teacher):
    """Returns the outputs of its last blocks."""

    def __init__(self, options: Data2VecOptions) -> None:
        super().__init__(
            options.momentum, schedule="linear", dropout=False, end=options.momentum_end
        )
        self.top_layers = options.top_layers
        self._copied: Pairs | None = None

    def attach(self, model: nn.Module) -> None:
        super().attach(model)
        self._copied = None
        copy, where = self.module, f"config.LOSS.{NAME}"
        blocks = getattr(getattr(copy, "trunk", None), "blocks", ())
        if not isinstance(copy, Model) or len(blocks) < self.top_layers:
            raise ConfigError(
                f"{where}.top_layers: it is {self.top_layers}, and the trunk has {len(blocks)} "
                f"blocks; {NAME} needs beit, vision_transformer or one of timm's ViTs."
            )
        names = tuple(f"blocks.{len(blocks) - number}" for number in range(self.top_layers, 0, -1))
        copy.trunk.check_features(names)
        copy.routes = tuple(
            replace(each, features=names, heads=(), additional_keys=()) for each in copy.routes
        )

    def after_update(self, step: Step) -> None:
        super().after_update(step)
        if self._copied is None:
            (model,) = self._model
            self._copied = pairs_of(
                self.module, model.parameters(), lambda name: not name.startswith(AVERAGED)
            )
        follow(self._copied, momentum=0.0)


def _rows(layer: Tensor) -> Tensor:
    """Tokens; timm's ViTs give a map of them."""
    return layer.flatten(2).mT if layer.dim() == 4 else layer


def _distance(output: Tensor, targets: Tensor, beta: float) -> Tensor:
    if beta == 0:
        return F.mse_loss(output, targets, reduction="none")
    return F.smooth_l1_loss(output, targets, reduction="none", beta=beta)
