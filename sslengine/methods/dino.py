"""DINO: a student predicts from every crop the teacher's scores of the large crops.

Caron et al., Emerging Properties in Self-Supervised Vision Transformers, 2021. With scores
t_abk of the teacher and s_vbk of the student for crops a and v of image b,

    p_ab = softmax((t_ab - c) / teacher temperature)
    loss = mean over a in crops_for_teacher, crops v != a and images b of
               - sum_k p_abk log softmax_k(s_vb / student_temp)

The teacher is a momentum copy of the model, m * teacher + (1 - m) * student, with m rising to 1
along half a cosine; its temperature has a warm-up. The centre c is a running mean of the
teacher's scores over all ranks, updated after their use. Ranks exchange nothing else: the mean of
their gradients is that of one process with the global batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sslengine.config.facts import RunFacts
from sslengine.config.ranges import above, at_least, share
from sslengine.config.sections import epochs
from sslengine.errors import ConfigError
from sslengine.losses.masked_patches import move_center
from sslengine.losses.views import split_views, swapped_prediction
from sslengine.methods.base import Method, Step
from sslengine.methods.teacher import Teacher, warmup
from sslengine.models.heads.mlp import WeightNormLinear, check_rows, perceptron
from sslengine.registry import register_head, register_loss

HEADS = ("dino_head", "swav_head")


@register_head("dino_head", "dino_head_fsdp")
class DINOHead(nn.Module):
    """Layers to a bottleneck of unit length, then dot products with weight-normalised rows."""

    def __init__(
        self,
        in_dim: int,
        num_clusters: Sequence[int],
        use_bn: bool = False,
        normalize_last_layer: bool = True,
        num_layers: int = 3,
        hidden_dim: int = 2048,
        bottleneck_dim: int = 256,
        weight_norm: bool = True,
    ) -> None:
        """
        in_dim: width of the feature.
        num_clusters: [the number of scores].
        use_bn: batch norm after each layer but the last.
        num_layers: the number of layers up to the bottleneck.
        hidden_dim: width of the layers before the bottleneck.
        bottleneck_dim: width of the bottleneck.
        weight_norm: the length and direction of the last layer's rows are separate parameters.
            Without it, as in DINOv3, it is a plain layer, whose rows keep no length.
        normalize_last_layer: the rows of the last layer keep length 1; false: it is learned.
        """
        super().__init__()
        if len(num_clusters) != 1:
            raise ConfigError(f"num_clusters: expected one number, got {list(num_clusters)}.")
        if num_layers < 1:
            raise ConfigError(f"num_layers: expected 1 or more, got {num_layers}.")
        if normalize_last_layer and not weight_norm:
            raise ConfigError("normalize_last_layer: only with weight_norm; set it to false.")
        self.in_features = in_dim
        dims = [in_dim, *[hidden_dim] * (num_layers - 1), bottleneck_dim]
        self.mlp = perceptron(dims, use_bn)
        sizes = bottleneck_dim, num_clusters[0]
        if weight_norm:
            learned = not normalize_last_layer
            self.prototypes0: nn.Module = WeightNormLinear(*sizes, learn_lengths=learned)
        else:
            self.prototypes0 = nn.Linear(*sizes, bias=False)
            nn.init.trunc_normal_(self.prototypes0.weight, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        """N x C to N x K; tokens, N x T x C, to N x T x K."""
        x = check_rows(x, self.in_features, "dino_head", tokens=True)
        bottleneck = F.normalize(self.mlp(x.flatten(0, -2)), dim=-1)
        scores: Tensor = self.prototypes0(bottleneck)
        return scores if x.dim() == 2 else scores.unflatten(0, x.shape[:-1])


@dataclass
class DINOOptions:
    # The teacher's momentum at the start; it rises to 1 during the run.
    momentum: float = share(0.996)
    # Of the student's scores.
    student_temp: float = above(0, 0.1)
    # The teacher's temperature rises from min to max in the first teacher_temp_warmup_iters.
    teacher_temp_min: float = above(0, 0.04)
    # The teacher's temperature after its warm-up.
    teacher_temp_max: float = above(0, 0.07)
    # Updates (optimizer steps) in which the teacher's temperature rises.
    teacher_temp_warmup_iters: int = 37500
    # Warm-up in epochs in place of updates: it changes at the start of each, as the authors do it.
    teacher_temp_warmup_epochs: int = at_least(0, epochs(0))
    # Numbers of the teacher's crops, from 0.
    crops_for_teacher: list[int] = field(default_factory=lambda: [0, 1])
    # Momentum of the centre.
    ema_center: float = share(0.9)
    # Set from the head and the transforms.
    output_dim: int = 65536
    # Set from the transforms.
    num_crops: int = 2

    def infer(self, facts: RunFacts) -> None:
        self.num_crops = facts.views_per_image
        self.output_dim = facts.head(*HEADS)["num_clusters"][-1]

    def teacher_temp(self, step: Step) -> float:
        length = self.teacher_temp_warmup_iters, self.teacher_temp_warmup_epochs
        return warmup(step, self.teacher_temp_min, self.teacher_temp_max, *length)


@register_loss(
    "dino_loss",
    options=DINOOptions,
    several_views=True,
    crops="crops_for_teacher",
    collators=("multicrop_collator",),
    heads=HEADS,
)
class DINOLoss(Method):
    judged_network: ClassVar[str] = "teacher"  # as in the authors' evaluations

    def __init__(self, options: DINOOptions, run: RunFacts) -> None:
        super().__init__()
        self.options = options
        self.momentum_teacher = Teacher(options.momentum, dropout=False)
        self.center: Tensor
        self.register_buffer("center", torch.zeros(1, options.output_dim))

    def forward(
        self, output: Tensor | Sequence[Tensor], sample: Any, step: Step
    ) -> dict[str, Tensor]:
        """output: the student's scores by crop, or a list that ends in them."""
        options = self.options
        crops = sample["input"]
        seen = [crops[number] for number in options.crops_for_teacher]
        scores = scores_of(self.momentum_teacher(seen, step))
        student = split_views(scores_of(output), options.num_crops, "dino_loss")
        teacher = split_views(scores.to(student.dtype), len(seen), "dino_loss")
        log_targets = ((teacher - self.center) / options.teacher_temp(step)).log_softmax(dim=-1)
        targets = log_targets.exp()
        log_p = (student / options.student_temp).log_softmax(dim=-1)
        loss = swapped_prediction(targets, log_p, options.crops_for_teacher)
        if step.train:
            move_center(self.center, teacher, options.ema_center)
        return {
            "loss": loss,
            "teacher_entropy": -(targets * log_targets).sum(dim=-1).mean(),
            "prototypes_used": prototypes_used(targets),
        }


def mean_entropy(targets: Tensor) -> Tensor:
    """Return the mean entropy of the rows of targets (..., K); 0, if there are none."""
    rows = targets.flatten(0, -2)
    total: Tensor = torch.special.entr(rows).sum()
    return total / max(1, len(rows))


@torch.no_grad()
def prototypes_used(targets: Tensor) -> Tensor:
    """exp of the entropy of the mean target (..., K): 1, if all rows are of one prototype, to K."""
    rows = targets.flatten(0, -2)
    mean = rows.mean(dim=0) if len(rows) else rows.sum(dim=0)  # no rows: 1
    entropy: Tensor = torch.special.entr(mean).sum()
    return entropy.exp()


def scores_of(output: Tensor | Sequence[Tensor]) -> Tensor:
    """The scores of an output; a head may return embeddings before them."""
    return output if isinstance(output, Tensor) else output[-1]
