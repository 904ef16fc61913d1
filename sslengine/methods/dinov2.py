"""DINOv2: DINO on class tokens, iBOT on hidden patches, and KoLeo, which spreads the images.

Oquab et al., DINOv2: Learning Robust Visual Features without Supervision, 2023. The first two parts
are those of ibot.py, with one temperature for both. Their targets are centred, or assigned by
Sinkhorn-Knopp over all ranks: class tokens of all global views together, and hidden patches. Then

    loss = class_weight * classes + patch_weight * patches
           + koleo_weight * sum over global views of koleo(class tokens of the trunk)

One difference from the authors' code with several ranks: the centre of patches is the mean over
the hidden patches of all ranks (theirs is the mean of the ranks' means). The model's inputs and
outputs, here with a head for each of the first two parts:

    HEAD.PARAMS: [[dino_head, {...}], [dino_head, {...}], [identity, {}]]
    MULTI_INPUT_HEAD_MAPPING:
      - [global_views, {feat_names: [lastCLS, lastPATCH, lastCLS], head_index: [0, 1, 2],
                        additional_keys: [mask, patches_at]}]
      - [local_views, {feat_names: [lastCLS], head_index: 0}]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from sslengine.config.ranges import above, at_least, choice, share
from sslengine.errors import TrainingError
from sslengine.losses.koleo import koleo
from sslengine.losses.sinkhorn import sinkhorn
from sslengine.methods.base import Step
from sslengine.methods.ibot import IBOTLoss, IBOTOptions, select_hidden
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
    # Weight of KoLeo; 0: the model needs no output for it.
    koleo_weight: float = at_least(0, 0.1)
    # Neighbours are searched among the images of all ranks; false: of each rank.
    koleo_over_ranks: bool = False


@register_loss("dinov2_loss", options=DINOv2Options)
class DINOv2Loss(IBOTLoss):
    loss_name: ClassVar[str] = "dinov2_loss"
    teacher_inputs: ClassVar[tuple[str, ...]] = ("global_views", "patches_at")
    options: DINOv2Options

    def weights(self) -> dict[str, float]:
        return {**super().weights(), "koleo": self.options.koleo_weight}

    def targets(
        self, classes: Tensor, patches: Tensor, at: Tensor, step: Step
    ) -> tuple[Tensor, Tensor]:
        patches = select_hidden(patches, at)
        if self.options.targets == "center":
            return super().targets(classes, patches, at, step)
        iterations, temperatures = self.options.sinkhorn_iterations, self.options.temperatures(step)
        first, second = (
            sinkhorn(scores, temperature, iterations)
            for scores, temperature in zip((classes, patches), temperatures, strict=True)
        )
        return first, second

    def regularizers(
        self, more: Sequence[Tensor], inputs: Mapping[str, Tensor], step: Step
    ) -> dict[str, Tensor]:
        if not self.options.koleo_weight:
            return {}
        if not more:
            raise TrainingError(
                f"{self.loss_name}: koleo_weight is above 0, but the model returns no class "
                f"tokens: add lastCLS with an identity head as the third feature of global_views "
                f"in MULTI_INPUT_HEAD_MAPPING, or set koleo_weight to 0."
            )
        views = (koleo(view, self.options.koleo_over_ranks) for view in more[0])
        return {"koleo": sum(views, start=more[0].new_zeros(()))}
