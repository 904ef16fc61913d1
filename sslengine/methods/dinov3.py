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
Gram anchoring, with it, and with larger images.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sslengine.config.facts import RunFacts
from sslengine.config.ranges import at_least, choice, share
from sslengine.distributed.sharding import copy_into
from sslengine.errors import ConfigError, TrainingError, listing
from sslengine.methods.base import Step
from sslengine.methods.dinov2 import DINOv2Options, assign, spread
from sslengine.methods.ibot import TokenMethod
from sslengine.methods.whole import EMA, Batch
from sslengine.models.frozen import FrozenNetwork, FrozenOptions
from sslengine.models.momentum import frozen_copy, start_as
from sslengine.models.trunks.tokens import MASK, PATCHES_AT
from sslengine.models.view_trunk import ViewTrunk
from sslengine.registry import register_loss

log = logging.getLogger("sslengine")

WHERE = "config.LOSS.dinov3_loss"


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
    gram_refresh: int = at_least(0, 0)
    # How often that happens at most.
    gram_refreshes: int = at_least(0, 3)

    def check(self) -> Iterator[str]:
        yield from super().check()
        given = self.gram_teacher
        if (given.weights or given.timm) and not self.gram_weight:
            yield "gram_teacher: set gram_weight above 0 (published: 2), or no gram_teacher."


@register_loss("dinov3_loss", options=DINOv3Options)
class DINOv3Loss(TokenMethod):
    def __init__(self, options: DINOv3Options, trunk: ViewTrunk, run: RunFacts) -> None:
        super().__init__(options, trunk)
        self.options = options
        self.weights |= {"koleo": options.koleo_weight, "gram": options.gram_weight}
        if options.gram_weight:
            self.gram = GramTeacher(trunk, options, run, self.teacher)

    def forward(self, batch: Batch, step: Step) -> dict[str, Tensor]:
        options, given = self.options, batch.sample
        *scores, tokens = self.look(batch, *["lastBLK"] * bool(options.gram_weight))
        *seen, _ = self.teacher(given["input"], {PATCHES_AT: given[PATCHES_AT]})
        targets = assign(seen, options, self, step)
        losses = self.predict(batch, targets, scores, options.local_weight)
        if options.koleo_weight:
            views = len(given["input"])
            losses["koleo"] = spread(tokens["lastCLS"], views, options.koleo_over_ranks)
        if options.gram_weight:
            rows, columns = given[MASK].shape[1:]
            images = torch.cat([*given.get("gram_views", given["input"])])
            wanted = resize_patches(self.gram(images), images, rows, columns)
            losses["gram"] = gram_anchoring(tokens["lastBLK"][:, -rows * columns :], wanted)
        return self.join(losses, targets)


class GramTeacher(nn.Module):
    """A trunk that is never trained, in eval mode; checkpoints have its weights."""

    def __init__(
        self, source: ViewTrunk, options: DINOv3Options, run: RunFacts, teacher: EMA
    ) -> None:
        super().__init__()
        given, self.options = options.gram_teacher, options
        self._source, self._teacher = (source,), (teacher,)  # in tuples: no submodules
        # Of a resumed run the checkpoint has the weights.
        self.gone = bool(run.resumes and given.weights and not Path(given.weights).exists())
        self.is_copy = not given.timm and (self.gone or not given.weights)
        if self.is_copy:
            self.attach()
            if not (run.resumes or run.starts_trained or next(self.parameters()).is_meta):
                log.warning(
                    "%s.gram_weight: patches are anchored to those of a network that is not "
                    "trained. Set config.MODEL.WEIGHTS_INIT.PARAMS_FILE to the weights of the step "
                    "before, or gram_teacher.",
                    WHERE,
                )
        else:
            network = FrozenNetwork(given, f"{WHERE}.gram_teacher", features=["lastPATCH"])
            network.load(source, weights=not self.gone)
            self.trunk = network.network.trunk
        self.train()
        if options.gram_refresh:
            self._expect_layers_of(source.trunk)

    def attach(self, model: nn.Module | None = None) -> None:
        """Start as the student does, which the teacher is at the start."""
        if self.is_copy:
            copied: Any = frozen_copy(self._source[0].trunk)
            if self.gone:  # the checkpoint's has no token of hidden patches
                del copied.mask_token
            self.trunk = copied.eval()

    def start_sharded(self, model: nn.Module) -> None:
        if self.is_copy:
            start_as(self.trunk, self._source[0].trunk)

    def train(self, mode: bool = True) -> GramTeacher:
        return super().train(False)

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tensor:
        (patches,) = self.trunk(images, ["lastPATCH"])
        return patches  # type: ignore[no-any-return]

    @torch.no_grad()
    def after_update(self, step: Step) -> None:
        """Called after the teacher's, so that the teacher has followed the student."""
        every = self.options.gram_refresh
        turn, left = divmod(step.num_updates + 1, every) if every else (0, 1)
        if left or turn > self.options.gram_refreshes:
            return
        teacher: Any = self._teacher[0].module
        theirs = dict(teacher.trunk.trunk.named_parameters())
        for name, each in self.trunk.named_parameters():
            if name in theirs:
                copy_into(each, theirs[name])

    def _expect_layers_of(self, trunk: nn.Module) -> None:
        """Raise unless the trunk can replace this one. One of them may lack the mask token, which
        is of use in training alone."""
        ours, theirs = ({(name, each.shape) for name, each in of.named_parameters()
                         if name != "mask_token"} for of in (self.trunk, trunk))  # fmt: skip
        if odd := {name for name, _ in ours ^ theirs}:
            raise ConfigError(
                f"{WHERE}.gram_refresh: the Gram teacher has other layers than the "
                f"model, and cannot become its teacher. Set it to 0. ({listing(odd, 4)})"
            )


def resize_patches(patches: Tensor, images: Tensor, rows: int, columns: int) -> Tensor:
    """Return the patches N x L x D of the images on a grid of so many rows and columns."""
    count = patches.shape[1]
    if count == rows * columns:
        return patches
    own = round((count * images.shape[-2] / images.shape[-1]) ** 0.5)
    if own == 0 or count % own:
        raise TrainingError(
            f"dinov3_loss: {count} patches of the Gram teacher do not make a grid in the shape of "
            f"its images, {images.shape[-2]} x {images.shape[-1]}."
        )
    maps = patches.mT.unflatten(2, (own, -1))
    smaller = F.interpolate(maps, (rows, columns), mode="bicubic", align_corners=False)
    return smaller.flatten(2).mT


def gram_anchoring(student: Tensor, teacher: Tensor) -> Tensor:
    """Return the mean over images and pairs of patches of (S S^T - G G^T)^2.

    S and G: the patches N x L x D of student and teacher, in unit length, of the same places.
    """
    ours, theirs = (F.normalize(each, dim=-1) for each in (student, teacher.detach()))
    return F.mse_loss(ours @ ours.mT, theirs @ theirs.mT)
