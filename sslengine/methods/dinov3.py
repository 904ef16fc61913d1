"""DINOv3: DINOv2 with schedules that stay constant, and Gram anchoring of the patches.

Simeoni et al., DINOv3, 2025. The loss of dinov2.py, in which the class tokens of local crops may
weigh less (local_weight), and while gram_weight is above 0

    loss += gram_weight * mean over global views of gram_anchoring(model's patches, Gram teacher's)

with the patches of the trunk after its final norm. The Gram teacher is a network from earlier in
training, whose patches still know where things are. It does not follow the model:

    gram_teacher: {weights: runs/earlier}    this network, or
    gram_teacher: {}                         the teacher as it is at the start of this run
    gram_refresh: 10000                      from then on the teacher of every so many updates

Checkpoints have its weights: a run resumes when the folder is gone, if the Gram teacher has the
layers of the model, or is one of timm's.

It sees the same crops, or larger ones of the same parts of the images, from which the collator
makes the model's (`spread_masks_collator: {resized_to: 256}`); its patches are then resized to the
model's grid. So training has three steps, each from the weights of the one before: without
Gram anchoring, with it, and with larger images. The model has one output more than DINOv2's:

    HEAD.PARAMS: [[dino_head, {...}], [dino_head, {...}], [identity, {}]]
    MULTI_INPUT_HEAD_MAPPING:
      - [global_views, {feat_names: [lastCLS, lastPATCH, lastCLS, lastBLK],
                        head_index: [0, 1, 2, 2], additional_keys: [mask, patches_at]}]
      - [local_views, {feat_names: [lastCLS], head_index: 0}]

Without gram_weight it may return lastBLK or not.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sslengine.config.facts import RunFacts
from sslengine.config.ranges import at_least, choice, share
from sslengine.config.sections import iterations
from sslengine.distributed.sharding import copy_into
from sslengine.errors import ConfigError, TrainingError, listing
from sslengine.methods.base import Step
from sslengine.methods.dinov2 import DINOv2Loss, DINOv2Options
from sslengine.methods.teacher import Teacher
from sslengine.models.build import trunk_with_heads
from sslengine.models.frozen import FrozenNetwork, FrozenOptions
from sslengine.models.momentum import frozen_copy, start_as
from sslengine.registry import register_loss

log = logging.getLogger("sslengine")

WHERE = "config.LOSS.dinov3_loss"
GRAM_VIEWS = "gram_views"


@dataclass
class DINOv3Options(DINOv2Options):
    # The teacher's momentum.
    momentum: float = share(0.994)
    # cosine, linear: how it rises to 1 during the run; constant: it does not.
    momentum_schedule: str = choice("constant", "cosine", "linear")
    # Targets: center (softmax of centred scores), or sinkhorn (assignment with equal shares).
    targets: str = choice("sinkhorn", "center")
    # Weight of local crops in the loss of class tokens.
    local_weight: float = at_least(0, 1.0)
    # Weight of Gram anchoring; 0: none, and no Gram teacher.
    gram_weight: float = at_least(0, 0.0)
    # The network that patches are anchored to; empty: the teacher at the start of this run.
    gram_teacher: FrozenOptions = field(default_factory=FrozenOptions)
    # Updates after which the Gram teacher is replaced by the teacher; 0: never.
    gram_refresh: int = at_least(0, iterations(0))
    # How often that happens at most.
    gram_refreshes: int = at_least(0, 3)

    def check(self) -> Iterator[str]:
        given = self.gram_teacher
        if (given.weights or given.timm) and not self.gram_weight:
            yield "gram_teacher: set gram_weight above 0 (published: 2), or no gram_teacher."


@register_loss("dinov3_loss", options=DINOv3Options)
class DINOv3Loss(DINOv2Loss):
    loss_name: ClassVar[str] = "dinov3_loss"
    options: DINOv3Options

    def __init__(self, options: DINOv3Options, run: RunFacts) -> None:
        super().__init__(options, run)
        self._resumes, self._starts_trained = run.resumes, run.starts_trained
        if options.gram_weight:
            follows = _Follows(self.teacher, options.gram_refresh, options.gram_refreshes)
            self.gram = GramTeacher(None, follows)

    def attach(self, model: nn.Module) -> None:
        super().attach(model)
        if self.options.gram_weight:
            self.gram.trunk = self._gram_trunk(model).to(next(model.parameters()).device)
            self.gram.train()
            if self.options.gram_refresh:
                self.gram.expect_layers_of(trunk_with_heads(model, self.loss_name).trunk)

    def start_sharded(self, model: nn.Module) -> None:
        given = self.options.gram_teacher
        if self.options.gram_weight and not (given.weights or given.timm):
            start_as(self.gram.trunk, trunk_with_heads(model, self.loss_name).trunk)

    def _gram_trunk(self, model: nn.Module) -> nn.Module:
        given = self.options.gram_teacher
        # Of a resumed run, at the first call, the checkpoint has the weights.
        gone = given.weights and not Path(given.weights).exists()
        gone = gone and self._resumes and not hasattr(self.gram, "trunk")
        if not given.timm and (gone or not given.weights):
            self._warn_if_untrained(model)
            return frozen_copy(trunk_with_heads(model, self.loss_name).trunk)
        network = FrozenNetwork(given, f"{WHERE}.gram_teacher", features=["lastPATCH"])
        network.load(model, weights=not gone)
        return network.network.trunk

    def _warn_if_untrained(self, model: nn.Module) -> None:
        """Warn once: at the first call that is not a check before the launch."""
        if self._starts_trained or self._resumes or hasattr(self.gram, "trunk"):
            return
        if not next(model.parameters()).is_meta:
            log.warning(
                "%s.gram_weight: patches are anchored to those of a network that is not trained. "
                "Set config.MODEL.WEIGHTS_INIT.PARAMS_FILE to the weights of the step before, or "
                "gram_teacher.",
                WHERE,
            )

    def forward(self, output: Any, sample: Any, step: Step) -> dict[str, Tensor]:
        """Larger views are in the batch, whether INPUT_KEY_NAMES lists them or not."""
        if GRAM_VIEWS in sample:
            sample = {**sample, "input": {**sample["input"], GRAM_VIEWS: sample[GRAM_VIEWS]}}
        return super().forward(output, sample, step)

    def log_q(self, crops: Tensor, large: int) -> Tensor:
        found, weight = super().log_q(crops, large), self.options.local_weight
        if weight == 1.0:
            return found
        return torch.cat([found[:large], weight * found[large:]])  # cross entropy is linear in it

    def weights(self) -> dict[str, float]:
        return {**super().weights(), "gram": self.options.gram_weight}

    def regularizers(
        self, more: Sequence[Tensor], inputs: Mapping[str, Tensor], step: Step
    ) -> dict[str, Tensor]:
        found = super().regularizers(more, inputs, step)
        if not self.options.gram_weight:
            return found
        mask = inputs["mask"]
        if len(more) < 2 or more[1].dim() != 4:
            raise TrainingError(
                f"{self.loss_name}: gram_weight is above 0, but the model returns no tokens of all "
                f"patches: add lastBLK with an identity head as the fourth feature of global_views "
                f"in MULTI_INPUT_HEAD_MAPPING, or set gram_weight to 0."
            )
        patches = more[1].flatten(0, 1)[:, -mask[0].numel() :]
        views = inputs.get(GRAM_VIEWS, inputs["global_views"])
        return {**found, "gram": gram_anchoring(patches, self.gram(views, mask.shape[1:], step))}


class _Follows(NamedTuple):
    teacher: Teacher
    every: int  # updates; 0: it does not follow
    times: int


class GramTeacher(nn.Module):
    """A trunk that is never trained, in eval mode; checkpoints have its weights."""

    trunk: nn.Module

    def __init__(self, trunk: nn.Module | None, follows: _Follows | None = None) -> None:
        super().__init__()
        self._follows = follows  # in a tuple, the teacher is not a submodule
        if trunk is not None:
            self.trunk = trunk
        self.train()

    def train(self, mode: bool = True) -> GramTeacher:
        return super().train(False)

    @torch.no_grad()
    def forward(self, images: Any, grid: Sequence[int], step: Step) -> Tensor:
        """The patches of the images, N x L x D, on a grid of this many rows and columns."""
        with step.autocast():
            (tokens,) = self.trunk(images, ["lastPATCH"])
        patches: Tensor = step.full(tokens)
        rows, columns = grid
        if patches.shape[1] == rows * columns:
            return patches
        own = round((patches.shape[1] * images.shape[-2] / images.shape[-1]) ** 0.5)
        if own == 0 or patches.shape[1] % own:
            raise TrainingError(
                f"dinov3_loss: {patches.shape[1]} patches of the Gram teacher do not make a grid "
                f"in the shape of its images, {images.shape[-2]} x {images.shape[-1]}."
            )
        maps = patches.mT.unflatten(2, (own, -1))
        smaller = F.interpolate(maps, (rows, columns), mode="bicubic", align_corners=False)
        return smaller.flatten(2).mT

    @torch.no_grad()
    def after_update(self, step: Step) -> None:
        """Called after the teacher's, so that the teacher has followed the model."""
        if self._follows is None or not self._follows.every:
            return
        turn, left = divmod(step.num_updates + 1, self._follows.every)
        if left == 0 and turn <= self._follows.times:
            model = trunk_with_heads(self._follows.teacher.module, DINOv3Loss.loss_name)
            self.replace_by(model.trunk)

    @torch.no_grad()
    def replace_by(self, trunk: nn.Module) -> None:
        theirs = dict(trunk.named_parameters())
        for name, each in self.trunk.named_parameters():
            if name in theirs:
                copy_into(each, theirs[name])

    def expect_layers_of(self, trunk: nn.Module) -> None:
        """Raise unless the trunk can replace this one. One of them may lack the mask token, which
        is of use in training alone."""
        ours, theirs = ({(name, each.shape) for name, each in of.named_parameters()
                         if name != "mask_token"} for of in (self.trunk, trunk))  # fmt: skip
        if odd := {name for name, _ in ours ^ theirs}:
            raise ConfigError(
                f"{WHERE}.gram_refresh: the Gram teacher has other layers than the "
                f"model, and cannot become its teacher. Set it to 0. ({listing(odd, 4)})"
            )


def gram_anchoring(student: Tensor, teacher: Tensor) -> Tensor:
    """Return the mean over images and pairs of patches of (S S^T - G G^T)^2.

    S and G: the patches N x L x D of student and teacher, in unit length, of the same places.
    """
    ours, theirs = (F.normalize(each, dim=-1) for each in (student, teacher.detach()))
    return F.mse_loss(ours @ ours.mT, theirs @ theirs.mT)
