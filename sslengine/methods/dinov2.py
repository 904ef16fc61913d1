"""DINOv2: DINO on class tokens, iBOT on hidden patches, and KoLeo, which spreads the images.

Oquab et al., DINOv2: Learning Robust Visual Features without Supervision, 2023. The first two parts
are those of ibot.py, with one temperature for both. Their targets are centred, or assigned by
Sinkhorn-Knopp over all ranks: class tokens of all global views together, and hidden patches. Then

    loss = class_weight * classes + patch_weight * patches
           + koleo_weight * sum over global views of koleo(class tokens of the trunk)

One difference from the authors' code with several ranks: the centre of patches is the mean over
the hidden patches of all ranks (theirs is the mean of the ranks' means).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sslengine.config.ranges import above, at_least, choice, share
from sslengine.losses.koleo import koleo
from sslengine.losses.sinkhorn import sinkhorn
from sslengine.methods.base import Step
from sslengine.methods.ibot import IBOTOptions, TokenMethod
from sslengine.methods.whole import Batch
from sslengine.models.trunks.tokens import PATCHES_AT
from sslengine.models.view_trunk import ViewTrunk
from sslengine.registry import register_loss


@dataclass
class DINOv2Options(IBOTOptions):
    # The teacher's momentum at the start.
    momentum: float = share(0.992)
    # The teacher's temperature for class tokens after the warm-up.
    teacher_temp_max: float = above(0, 0.07)
    # Targets: center (softmax of centred scores), or sinkhorn (assignment with equal shares).
    targets: str = choice("center", "sinkhorn")
    # Iterations of Sinkhorn-Knopp.
    sinkhorn_iterations: int = at_least(1, 3)
    # Weight of KoLeo.
    koleo_weight: float = at_least(0, 0.1)
    # Neighbours are searched among the images of all ranks; false: of each rank.
    koleo_over_ranks: bool = False


def assign(
    scores: Sequence[Tensor], options: DINOv2Options, method: TokenMethod, step: Step
) -> list[Tensor]:
    """Return the targets of class tokens and of hidden patches, from the teacher's scores."""
    temperatures = options.temperatures(step)
    if options.targets == "sinkhorn":
        number = options.sinkhorn_iterations
        return [sinkhorn(*each, number) for each in zip(scores, temperatures, strict=True)]
    kinds = zip((method.class_center, method.patch_center), scores, temperatures, strict=True)
    return [center.targets(given, temperature, step) for center, given, temperature in kinds]


def spread(classes: Tensor, views: int, over_ranks: bool) -> Tensor:
    """Return the sum of KoLeo over views of the trunk's class tokens."""
    return torch.stack([koleo(view, over_ranks) for view in classes.chunk(views)]).sum()


@register_loss("dinov2_loss", options=DINOv2Options)
class DINOv2Loss(TokenMethod):
    def __init__(self, options: DINOv2Options, trunk: ViewTrunk) -> None:
        super().__init__(options, trunk)
        self.options, self.weights["koleo"] = options, options.koleo_weight

    def forward(self, batch: Batch, step: Step) -> dict[str, Tensor]:
        views, at = batch.sample["input"], {PATCHES_AT: batch.sample[PATCHES_AT]}
        *scores, tokens = self.look(batch)
        *given, _ = self.teacher(views, at)
        targets = assign(given, self.options, self, step)
        losses = self.predict(batch, targets, scores)
        if self.options.koleo_weight:
            losses["koleo"] = spread(tokens["lastCLS"], len(views), self.options.koleo_over_ranks)
        return self.join(losses, targets)
