"""iBOT: predict the teacher's scores of whole images from images in which patches are hidden.

Zhou et al., iBOT: Image BERT Pre-Training with Online Tokenizer, 2022. With scores t of the teacher
and s of the student, for class tokens and for patches,

    p = softmax((t - c) / teacher temperature),    q = softmax(s / student_temp)
    classes = mean over images, global views u and all views v != u of  - sum_k p_uk log q_vk
    patches = mean over images, global views and the hidden patches of each of  - sum_k p_k log q_k
    loss = class_weight * classes + patch_weight * patches

The teacher is a momentum copy of the model, as in DINO; it sees the global views without masks.
The centres c, one for class tokens and one for patches, are running means of the teacher's scores
(of all patches, hidden or not) over all ranks. The model's inputs and outputs:

    MULTI_INPUT_HEAD_MAPPING:
      - [global_views, {feat_names: [lastCLS, lastPATCH], head_index: [0, 0],
                        additional_keys: [mask, patches_at]}]
      - [local_views, {feat_names: [lastCLS], head_index: 0}]

Here one head serves class tokens and patches. With two heads, head_index is [0, 1].
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch
from torch import Tensor

from sslengine.config.facts import RunFacts
from sslengine.config.ranges import above, at_least, choice, share
from sslengine.config.sections import epochs, iterations
from sslengine.errors import TrainingError
from sslengine.losses.masked_patches import Center, masked_cross_entropy
from sslengine.losses.views import described, split_views, swapped_prediction
from sslengine.methods.base import Method, Step
from sslengine.methods.dino import mean_entropy, prototypes_used
from sslengine.methods.teacher import Schedule, Teacher, warmup
from sslengine.registry import register_loss


@dataclass
class IBOTOptions:
    # The teacher's momentum at the start.
    momentum: float = share(0.996)
    # cosine, linear: how it rises to 1 during the run; constant: it does not.
    momentum_schedule: str = choice("cosine", "linear", "constant")
    # Of the student's scores.
    student_temp: float = above(0, 0.1)
    # The teacher's temperature for class tokens rises from min to max during the warm-up.
    teacher_temp_min: float = above(0, 0.04)
    # The same temperature after the warm-up.
    teacher_temp_max: float = above(0, 0.04)
    # The teacher's temperature for patches rises from min to max during the warm-up.
    patch_temp_min: float = above(0, 0.04)
    # The same temperature after the warm-up.
    patch_temp_max: float = above(0, 0.07)
    # Updates (optimizer steps) of the warm-up.
    teacher_temp_warmup_iters: int = iterations(37500)
    # Warm-up in epochs in place of updates: temperatures change at the start of each.
    teacher_temp_warmup_epochs: int = at_least(0, epochs(0))
    # Momentum of the centres.
    ema_center: float = share(0.9)
    # Weight of the loss of class tokens.
    class_weight: float = at_least(0, 1.0)
    # Weight of the loss of hidden patches.
    patch_weight: float = at_least(0, 1.0)
    # Scores of class tokens. Set from the first head.
    output_dim: int = 8192
    # Scores of patches. Set from the last dino_head.
    patch_output_dim: int = 8192
    # Set from the transforms.
    num_crops: int = 2

    def infer(self, facts: RunFacts) -> None:
        self.num_crops = facts.views_per_image
        heads = [arguments for name, arguments in facts.heads if name == "dino_head"]
        self.output_dim = heads[0]["num_clusters"][-1]
        self.patch_output_dim = heads[-1]["num_clusters"][-1]

    def temperatures(self, step: Step) -> tuple[float, float]:
        """Return the teacher's temperatures for class tokens and for patches."""
        length = self.teacher_temp_warmup_iters, self.teacher_temp_warmup_epochs
        return (
            warmup(step, self.teacher_temp_min, self.teacher_temp_max, *length),
            warmup(step, self.patch_temp_min, self.patch_temp_max, *length),
        )


@register_loss(
    "ibot_loss",
    options=IBOTOptions,
    several_views=True,
    collators=("ibot_multicrop_masking_collator", "spread_masks_collator"),
    heads=("dino_head",),
    inputs=("global_views", "mask", "patches_at"),
    trunk_input="mask",
)
class IBOTLoss(Method):
    judged_network: ClassVar[str] = "teacher"  # as in the authors' evaluations
    loss_name: ClassVar[str] = "ibot_loss"
    # The teacher's inputs. With `patches_at` it scores the hidden patches only.
    teacher_inputs: ClassVar[tuple[str, ...]] = ("global_views",)

    def __init__(self, options: IBOTOptions, run: RunFacts) -> None:
        super().__init__()
        self.options = options
        schedule = cast(Schedule, options.momentum_schedule)
        self.teacher = Teacher(options.momentum, schedule, dropout=False)
        self.class_center = Center(options.output_dim, options.ema_center)
        self.patch_center = Center(options.patch_output_dim, options.ema_center)

    def forward(self, output: Any, sample: Any, step: Step) -> dict[str, Tensor]:
        """output: [class scores, patch scores, ...] of global views, class scores of local ones."""
        options, inputs = self.options, sample["input"]
        (classes, patches, *more), local = self._parts(output)
        shown = {name: inputs[name] for name in self.teacher_inputs}
        (of_classes, of_patches, *_), _ = self._parts(self.teacher(shown, step))
        crops = split_views(torch.cat([classes, local]), options.num_crops, self.loss_name)
        large = len(classes) // crops.shape[1]
        mask, at = inputs["mask"], inputs["patches_at"]
        targets, patch_targets = self.targets(of_classes, of_patches, at, step)
        targets = split_views(targets, large, self.loss_name)
        log_q = self.log_q(crops, large)
        log_q_patches = (select_hidden(patches, at) / options.student_temp).log_softmax(dim=-1)
        losses = {
            "classes": swapped_prediction(targets, log_q, range(large)),
            "patches": masked_cross_entropy(patch_targets, log_q_patches, mask, at),
            **self.regularizers([each.unflatten(0, (large, -1)) for each in more], inputs, step),
        }
        weighted = (self.weights()[name] * value for name, value in losses.items())
        loss = cast(Tensor, sum(weighted))
        signs = {
            "teacher_entropy": mean_entropy(targets),
            "prototypes_used": prototypes_used(targets),
            "patch_teacher_entropy": mean_entropy(patch_targets),
            "patch_prototypes_used": prototypes_used(patch_targets),
        }
        return {"loss": loss, **losses, **signs}

    def log_q(self, crops: Tensor, large: int) -> Tensor:
        """Log probabilities of the crops' class scores, by view; the large ones are first."""
        return (crops / self.options.student_temp).log_softmax(dim=-1)

    def weights(self) -> dict[str, float]:
        """The weight of each part of the loss."""
        return {"classes": self.options.class_weight, "patches": self.options.patch_weight}

    def targets(
        self, classes: Tensor, patches: Tensor, at: Tensor, step: Step
    ) -> tuple[Tensor, Tensor]:
        """The targets of class tokens and of hidden patches, from the teacher's scores."""
        of_class, of_patch = self.options.temperatures(step)
        targets = (
            self.class_center.targets(classes, of_class),
            self.patch_center.targets(select_hidden(patches, at), of_patch),
        )
        if step.train:
            self.class_center.move(classes)
            self.patch_center.move(patches)
        return targets

    def regularizers(
        self, more: Sequence[Tensor], inputs: Mapping[str, Tensor], step: Step
    ) -> dict[str, Tensor]:
        """Further parts of the loss. more: other outputs of the global views, by view."""
        return {}

    def _parts(self, output: Any) -> tuple[Sequence[Tensor], Tensor]:
        """The outputs of the global views, and the class scores of the local ones."""
        match output:
            case [[Tensor() as classes, Tensor() as patches, *more], Tensor() as local]:
                return [classes, patches, *more], local
            case [Tensor() as classes, Tensor() as patches, *more]:
                return [classes, patches, *more], classes[:0]
        raise TrainingError(
            f"{self.loss_name} needs class scores and patch scores of the global views, and class "
            f"scores of the local ones; the model returned {described(output)}. See "
            f"MULTI_INPUT_HEAD_MAPPING in configs/photos/{self.loss_name.removesuffix('_loss')}"
            f".yaml."
        )


def select_hidden(patches: Tensor, at: Tensor) -> Tensor:
    """The rows of hidden patches; a model that got `patches_at` returned these alone."""
    return patches if patches.dim() == 2 else patches.flatten(0, 1).index_select(0, at)
