"""DINO: a student predicts, from every crop, what its slow copy sees in the large ones.

Caron et al., Emerging Properties in Self-Supervised Vision Transformers, 2021. With scores
t_abk of the teacher and s_vbk of the student for crops a and v of image b,

    p_ab = softmax((t_ab - c) / teacher temperature)
    loss = mean over a in crops_for_teacher, crops v != a and images b of
               - sum_k p_abk log softmax_k(s_vb / student_temp)

The teacher is a copy of the model that follows it, m * teacher + (1 - m) * student, with m
rising to 1 along half a cosine; its temperature rises for a while, too. The centre c follows
the mean of the teacher's scores over all ranks, behind their use. Nothing else passes between
ranks: the mean of their gradients is that of one process with the whole batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _NormBase

from sslengine.config.facts import RunFacts
from sslengine.config.sections import iterations
from sslengine.distributed.collectives import sum_in_place
from sslengine.distributed.ranks import world_size
from sslengine.errors import ConfigError, TrainingError
from sslengine.hooks.events import Hook, TaskView
from sslengine.losses.momentum import follow, frozen_copy, rank_0_statistics, rising_momentum
from sslengine.losses.swapped_prediction import check_crops, swapped_prediction
from sslengine.methods.base import Method
from sslengine.models.heads.weight_norm_linear import WeightNormLinear
from sslengine.registry import register_head, register_loss

WHERE = "config.LOSS.dino_loss"


@register_head("dino_head", "dino_head_fsdp")
class DINOHead(nn.Module):
    """Layers down to a bottleneck of unit length, and its products with directions."""

    def __init__(
        self,
        in_dim: int,
        num_clusters: Sequence[int],
        use_bn: bool = False,
        normalize_last_layer: bool = True,
        num_layers: int = 3,
        hidden_dim: int = 2048,
        bottleneck_dim: int = 256,
    ) -> None:
        """
        num_clusters: [the number of scores].
        normalize_last_layer: directions have length 1 for good.
        """
        super().__init__()
        if len(num_clusters) != 1:
            raise ConfigError(f"num_clusters: expected one number, got {list(num_clusters)}.")
        if num_layers < 1:
            raise ConfigError(f"num_layers: expected 1 or more, got {num_layers}.")
        self.in_features = in_dim
        dims = [in_dim, *[hidden_dim] * (num_layers - 1), bottleneck_dim]
        self.mlp = _layers(dims, use_bn)
        self.prototypes0 = WeightNormLinear(
            bottleneck_dim, num_clusters[0], learn_lengths=not normalize_last_layer
        )

    def forward(self, x: Tensor) -> Tensor:
        """N x C to N x K."""
        if x.dim() == 4 and x.shape[2:] == (1, 1):
            x = x.flatten(1)
        if x.dim() != 2 or x.shape[1] != self.in_features:
            raise ConfigError(
                f"config.MODEL.HEAD.PARAMS: a dino_head with in_dim {self.in_features} got "
                f"features of shape {tuple(x.shape)}; it takes N x {self.in_features}."
            )
        scores: Tensor = self.prototypes0(F.normalize(self.mlp(x), dim=-1))
        return scores


def _layers(dims: Sequence[int], use_bn: bool) -> nn.Module:
    layers = nn.Sequential()
    for inputs, outputs in pairwise(dims):
        if len(layers):
            if use_bn:
                layers.append(nn.BatchNorm1d(inputs))
            layers.append(nn.GELU())
        linear = nn.Linear(inputs, outputs)
        nn.init.trunc_normal_(linear.weight, std=0.02)
        nn.init.zeros_(linear.bias)
        layers.append(linear)
    # A single layer has VISSL's name for it: mlp.weight.
    return layers if len(layers) > 1 else layers[0]


@dataclass
class DINOOptions:
    # Of the teacher; it rises to 1 in the course of the run.
    momentum: float = 0.996
    student_temp: float = 0.1
    # Of the teacher: from min to max in the first so many steps.
    teacher_temp_min: float = 0.04
    teacher_temp_max: float = 0.07
    teacher_temp_warmup_iters: int = iterations(37500)
    # In place of steps: in the first so many epochs, at the beginning of each, as the authors do.
    teacher_temp_warmup_epochs: int = 0
    # Crops that the teacher sees, counted from 0.
    crops_for_teacher: list[int] = field(default_factory=lambda: [0, 1])
    # Of the centre.
    ema_center: float = 0.9
    # Filled in from the head and the transforms.
    output_dim: int = 65536
    num_crops: int = 2

    def infer(self, facts: RunFacts) -> None:
        head = facts.head("dino_head") or facts.head("swav_head")
        if head is None:
            raise ConfigError(f"{WHERE}: needs dino_head or swav_head in config.MODEL.HEAD.PARAMS.")
        check_crops(
            WHERE, "crops_for_teacher", self.crops_for_teacher, facts, ["multicrop_collator"]
        )
        self.num_crops = facts.views_per_image
        self.output_dim = head["num_clusters"][-1]

    def check(self) -> Iterator[str]:
        for key in ("student_temp", "teacher_temp_min", "teacher_temp_max"):
            if getattr(self, key) <= 0:
                yield f"{key}: expected a number above 0, got {getattr(self, key)}."
        for key in ("momentum", "ema_center"):
            if not 0 <= getattr(self, key) <= 1:
                yield f"{key}: expected a number from 0 to 1, got {getattr(self, key)}."
        if self.teacher_temp_warmup_epochs < 0:
            yield f"teacher_temp_warmup_epochs: {self.teacher_temp_warmup_epochs} is less than 0."

    def teacher_temp(self, iteration: int, epoch: int = 0) -> float:
        """With so many train steps made, in this epoch, counted from 0."""
        if self.teacher_temp_warmup_epochs:
            made, warmup = epoch, self.teacher_temp_warmup_epochs
        else:
            made, warmup = iteration, self.teacher_temp_warmup_iters
        if made >= warmup:
            return self.teacher_temp_max
        share = made / max(1, warmup - 1)
        return self.teacher_temp_min + share * (self.teacher_temp_max - self.teacher_temp_min)


class Teacher(nn.Module):
    """The copy. Nothing in it is random: no dropout and no stochastic depth.

    Batch norms use the statistics of the batch, in training, as the student's do. The copy
    is called `module` because VISSL's YAML looks for it under that name in checkpoints.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.module = frozen_copy(model)
        self.train(model.training)

    def train(self, mode: bool = True) -> Teacher:
        super().train(False)
        self.training = mode
        for each in self.modules():
            if isinstance(each, _NormBase):
                each.training = mode
        return self

    def forward(self, crops: Sequence[Tensor]) -> Any:
        return self.module(crops)


@register_loss("dino_loss", options=DINOOptions)
class DINOLoss(Method):
    teacher_part: ClassVar[str] = "momentum_teacher.module"
    judged_network: ClassVar[str] = "teacher"  # as in the authors' evaluations

    def __init__(self, options: DINOOptions, run: RunFacts) -> None:
        super().__init__()
        self.options = options
        self.center: Tensor
        self.register_buffer("center", torch.zeros(1, options.output_dim))
        self.teacher_scores: Tensor | None = None
        self.teacher_temp = options.teacher_temp(0)

    def attach(self, model: nn.Module) -> None:
        self.momentum_teacher = Teacher(model)

    @property
    def teacher(self) -> nn.Module:
        return self.momentum_teacher.module

    def hooks(self) -> list[Hook]:
        return [Teach(self)]

    def forward(
        self, output: Tensor | Sequence[Tensor], target: Tensor | None = None
    ) -> dict[str, Tensor]:
        """output: the student's scores, crop by crop, or a list that ends in them."""
        student, teacher = self._checked(scores_of(output))
        log_targets = ((teacher - self.center) / self.teacher_temp).log_softmax(dim=-1)
        targets = log_targets.exp()
        log_p = (student / self.options.student_temp).log_softmax(dim=-1)
        loss = swapped_prediction(targets, log_p, self.options.crops_for_teacher)
        if self.training:
            self._move_center(teacher)
        return {"loss": loss, "teacher_entropy": -(targets * log_targets).sum(dim=-1).mean()}

    def _checked(self, student: Tensor) -> tuple[Tensor, Tensor]:
        """Scores of student (V, B, K) and teacher (A, B, K)."""
        teacher, self.teacher_scores = self.teacher_scores, None
        sources, crops = self.options.crops_for_teacher, self.options.num_crops
        if teacher is None:
            raise TrainingError("dino_loss has no scores of the teacher: its hook has not run.")
        if len(student) * len(sources) != len(teacher) * crops:
            raise TrainingError(
                f"dino_loss needs {crops} crops of every image, the model gave {len(student)} rows "
                f"for {len(teacher) // len(sources)} images. Is DATA.TRAIN.COLLATE_FUNCTION "
                f"multicrop_collator?"
            )
        # Behind a teacher whose parameters are frozen there is no gradient; a test may give one.
        teacher = teacher.detach().to(student.dtype)
        return student.unflatten(0, (crops, -1)), teacher.unflatten(0, (len(sources), -1))

    @torch.no_grad()
    def _move_center(self, teacher: Tensor) -> None:
        total = sum_in_place(teacher.sum(dim=(0, 1)))
        mean = total / (teacher.shape[0] * teacher.shape[1] * world_size())
        self.center.lerp_(mean.to(self.center.dtype), 1.0 - self.options.ema_center)


def scores_of(output: Tensor | Sequence[Tensor]) -> Tensor:
    """A head may give embeddings in front of the scores."""
    return output if isinstance(output, Tensor) else output[-1]


class Teach(Hook):
    """The teacher's forward and its way after the student."""

    def __init__(self, loss: DINOLoss) -> None:
        self.loss = loss

    @torch.no_grad()
    def on_forward(self, task: TaskView) -> None:
        crops, options = task.last_batch.sample["input"], self.loss.options
        if not isinstance(crops, (list, tuple)) or len(crops) != options.num_crops:
            raise TrainingError(
                f"dino_loss needs a list of {options.num_crops} crops; is COLLATE_FUNCTION of "
                f"config.DATA.{'TRAIN' if task.train else 'TEST'} multicrop_collator?"
            )
        with task.precision.autocast():
            output = self.loss.momentum_teacher([crops[i] for i in options.crops_for_teacher])
        self.loss.teacher_scores = task.precision.as_full(scores_of(output))
        self.loss.teacher_temp = options.teacher_temp(task.iteration, task.phase.epoch)
        if task.train:
            rank_0_statistics(self.loss.teacher)

    def on_update(self, task: TaskView) -> None:
        momentum = rising_momentum(self.loss.options.momentum, task.where)
        follow(self.loss.teacher, task.base_model, momentum)
