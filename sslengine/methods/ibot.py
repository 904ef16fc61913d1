"""iBOT: predict the teacher's scores of whole images from images in which patches are hidden.

Zhou et al., iBOT: Image BERT Pre-Training with Online Tokenizer, 2022. With scores t of the teacher
and s of the student, for class tokens and for patches,

    p = softmax((t - c) / teacher temperature),    q = softmax(s / student_temp)
    classes = mean over images, global views u and all views v != u of  - sum_k p_uk log q_vk
    patches = mean over images, global views and the hidden patches of each of  - sum_k p_k log q_k
    loss = class_weight * classes + patch_weight * patches

The teacher is a momentum copy, as in DINO; it sees the global views without masks. The centres c,
one for class tokens and one for patches, are running means of the teacher's scores (of all patches,
hidden or not) over all ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, cast

import torch
from torch import Tensor, nn

from sslengine.config.components import argument_problems
from sslengine.config.facts import RunFacts
from sslengine.config.ranges import above, at_least, choice, share
from sslengine.config.sections import epochs
from sslengine.losses.masked_patches import Center, masked_cross_entropy
from sslengine.losses.views import swapped_prediction
from sslengine.methods.base import Method, Step
from sslengine.methods.dino import DINOHead, mean_entropy, prototypes_used
from sslengine.methods.teacher import Schedule, warmup
from sslengine.methods.whole import EMA, Batch
from sslengine.models.trunks.tokens import MASK, PATCHES_AT
from sslengine.models.view_trunk import ViewTrunk
from sslengine.registry import Requirements, register_loss


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
    teacher_temp_warmup_iters: int = 37500
    # Warm-up in epochs in place of updates: temperatures change at the start of each.
    teacher_temp_warmup_epochs: int = at_least(0, epochs(0))
    # Momentum of the centres.
    ema_center: float = share(0.9)
    # Weight of the loss of class tokens.
    class_weight: float = at_least(0, 1.0)
    # Weight of the loss of hidden patches.
    patch_weight: float = at_least(0, 1.0)
    # Scores of class tokens.
    output_dim: int = at_least(1, 8192)
    # Scores of patches, by a second head; 0: the head of class tokens scores them too.
    patch_output_dim: int = at_least(0, 0)
    # Further arguments of dino_head, of both heads.
    head: dict[str, Any] = field(default_factory=dict)
    # Those of the second head that differ.
    patch_head: dict[str, Any] = field(default_factory=dict)

    def check(self) -> Iterator[str]:
        for name, given in (("head", self.head), ("patch_head", self.patch_head)):
            yield from argument_problems(DINOHead, given, name, ("in_dim", "num_clusters"))

    def infer(self, facts: RunFacts) -> None:
        """Take over the heads of earlier YAML."""
        heads = [{**given} for name, given in facts.heads if name == "dino_head"]
        if heads:
            scores = [given.pop("num_clusters")[-1] for given in heads]
            self.output_dim, self.patch_output_dim = scores[0], sum(scores[1:2])
            self.head, self.patch_head = (
                {key: each for key, each in given.items() if key != "in_dim"}
                for given in (heads[0], {**heads[-1]} if len(heads) > 1 else {})
            )

    def temperatures(self, step: Step) -> tuple[float, float]:
        """Return the teacher's temperatures for class tokens and for patches."""
        length = self.teacher_temp_warmup_iters, self.teacher_temp_warmup_epochs
        return (
            warmup(step, self.teacher_temp_min, self.teacher_temp_max, *length),
            warmup(step, self.patch_temp_min, self.patch_temp_max, *length),
        )


class TokenScores(nn.Module):
    """Scores of class tokens and of patches, and the trunk's tokens of the global views."""

    def __init__(self, trunk: ViewTrunk, options: IBOTOptions) -> None:
        super().__init__()
        trunk.take(MASK)
        self.trunk, self.patch_head = trunk, None
        self.head = DINOHead(trunk.width, [options.output_dim], **options.head)
        if options.patch_output_dim:
            given = options.head | options.patch_head
            self.patch_head = DINOHead(trunk.width, [options.patch_output_dim], **given)

    def forward(
        self,
        images: Sequence[Tensor],
        inputs: Mapping[str, Tensor],
        local: Sequence[Tensor] = (),
        more: Sequence[str] = (),
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """images: global views. inputs: what the trunk gets with them. more: further features."""
        tokens = self.trunk(torch.cat([*images]), ["lastCLS", "lastPATCH", *more], **inputs)
        classes = [self.head(tokens["lastCLS"])]
        patches = (self.patch_head or self.head)(tokens["lastPATCH"])
        if local:
            classes += [self.head(self.trunk(torch.cat([*local]), ["lastCLS"])["lastCLS"])]
        return torch.cat(classes), patches, tokens


class TokenMethod(Method):
    """Networks and centres of methods that predict scores of class tokens and hidden patches."""

    judged_network = "teacher"  # as in the authors' evaluations
    # Parameters of YAML and checkpoints in which heads were the model's.
    earlier_names = MappingProxyType(
        {"heads.0.": "student.head.", "heads.1.": "student.patch_head."}
    )
    requires = Requirements(
        several_views=True, trunk_input=MASK, features=("lastCLS", "lastPATCH"),
        collators=("spread_masks_collator", "ibot_multicrop_masking_collator"),
    )  # fmt: skip

    def __init__(self, options: IBOTOptions, trunk: ViewTrunk) -> None:
        super().__init__()
        self.student_temp = options.student_temp
        self.weights = {"classes": options.class_weight, "patches": options.patch_weight}
        self.student = TokenScores(trunk, options)
        schedule = cast(Schedule, options.momentum_schedule)
        self.teacher = EMA(self.student, options.momentum, schedule, dropout=False)
        widths = options.output_dim, options.patch_output_dim or options.output_dim
        self.class_center, self.patch_center = (Center(k, options.ema_center) for k in widths)

    def look(self, batch: Batch, *more: str) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Return what the student makes of a batch, without the hidden patches."""
        inputs = {name: batch.sample[name] for name in (MASK, PATCHES_AT)}
        local = batch.sample.get("local_views", ())
        return self.student(batch.sample["input"], inputs, local, more)  # type: ignore[no-any-return]

    def predict(
        self, batch: Batch, targets: Sequence[Tensor], scores: Sequence[Tensor], local: float = 1.0
    ) -> dict[str, Tensor]:
        """Compare scores with the targets: class tokens of other views, hidden patches.

        local: weight of local views.
        """
        log_q, of_patches = ((each / self.student_temp).log_softmax(dim=-1) for each in scores)
        log_q = log_q.unflatten(0, (len(batch.views), -1))
        large = len(batch.sample["input"])
        if local != 1.0:  # cross entropy is linear in log_q
            log_q = torch.cat([log_q[:large], local * log_q[large:]])
        wanted, of_hidden = targets[0].unflatten(0, (large, -1)), targets[1]
        hidden = batch.sample[MASK], batch.sample[PATCHES_AT]
        return {
            "classes": swapped_prediction(wanted, log_q, range(large)),
            "patches": masked_cross_entropy(of_hidden, of_patches, *hidden),
        }

    def join(self, losses: Mapping[str, Tensor], targets: Sequence[Tensor]) -> dict[str, Tensor]:
        """Return the weighted sum of the losses, each of them, and signs of collapse."""
        loss = cast(Tensor, sum(self.weights[name] * value for name, value in losses.items()))
        signs = {}
        for kind, of in zip(("", "patch_"), targets, strict=True):
            signs[f"{kind}teacher_entropy"] = mean_entropy(of)
            signs[f"{kind}prototypes_used"] = prototypes_used(of)
        return {"loss": loss, **losses, **signs}


@register_loss("ibot_loss", options=IBOTOptions)
class IBOTLoss(TokenMethod):
    def __init__(self, options: IBOTOptions, trunk: ViewTrunk) -> None:
        super().__init__(options, trunk)
        self.options = options

    def forward(self, batch: Batch, step: Step) -> dict[str, Tensor]:
        *scores, _ = self.look(batch)
        classes, patches, _ = self.teacher(batch.sample["input"], {})
        of_class, of_patch = self.options.temperatures(step)
        hidden = patches.flatten(0, 1).index_select(0, batch.sample[PATCHES_AT])
        targets = (
            self.class_center.targets(classes, of_class, step),
            self.patch_center.targets(hidden, of_patch),
        )
        if step.train:
            self.patch_center.move(patches)
        return self.join(self.predict(batch, targets, scores), targets)
