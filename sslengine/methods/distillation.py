"""Distillation: students learn what frozen teachers make of the same views.

With t of a teacher and s of a student's adaptor for that teacher, for the same images,

    cosine    loss = mean over rows of 1 - cos(s, t)
    mse       loss = mean over rows and channels of (s - t)^2
    kl        p = softmax(t / teacher_temp),  q = softmax(s / student_temp)
              loss = mean over rows of sum_k p_k (log p_k - log q_k)
    am_radio  cosine; of patches 0.9 cosine + 0.1 mean of smooth L1(s - t)

total = sum over students, teachers of weight * (summary * loss of images + patches * loss of
patches). For kl, t are the scores of the teacher's head, such as DINO's for its prototypes; else t
is a feature of its trunk. A row is an image, or a patch: a student's map is resized to the
teacher's grid (bilinear). An adaptor is a linear layer, or one with a hidden layer, for each pair
and each of the two losses (AM-RADIO: Ranzinger et al., 2312.06709).

Teachers differ in the size of their features, and the largest would decide. So several are
standardised: t <- (t - mean) / s, s^2 = mean over channels of their variance, by all images seen so
far. It is the scale of PHI-S (2410.01680), whose rotation changes none of cosine and mse.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sslengine.config.facts import RunFacts
from sslengine.config.ranges import above, at_least, choice
from sslengine.distributed.collectives import sum_in_place
from sslengine.methods.base import Method, Step
from sslengine.methods.whole import Batch
from sslengine.models.build import build_model, output_widths
from sslengine.models.frozen import FrozenNetwork, FrozenOptions
from sslengine.models.options import ModelOptions, TrunkOptions
from sslengine.models.trunks.base import dense_feature
from sslengine.models.trunks.library_options import TimmOptions
from sslengine.models.view_trunk import ViewTrunk, lend
from sslengine.models.weights.load import init_weights
from sslengine.registry import register_loss

NAME = "distillation_loss"
COSINE, MSE, KL, RADIO = "cosine", "mse", "kl", "am_radio"
SUMMARY, PATCHES = "summary", "patches"


@dataclass
class TeacherOptions(FrozenOptions):
    # A factor on the losses by this teacher.
    weight: float = above(0, 1.0)
    # The side of the images that it gets, resized (bicubic); 0: those of the students.
    size: int = at_least(0, 0)
    # Mean of Normalize, if it was trained with another than DATA.TRAIN.TRANSFORMS has.
    mean: list[float] = field(default_factory=list)
    # Standard deviation of Normalize, likewise.
    std: list[float] = field(default_factory=list)

    def check(self) -> Iterator[str]:
        yield from super().check()
        if len(self.mean) != len(self.std):
            yield f"std: expected one for each of mean, {self.mean}; got {self.std}."


@dataclass
class DistillationOptions:
    # The trained network that the student learns from.
    teacher: TeacherOptions = field(default_factory=TeacherOptions)
    # Further ones, by names of yours: {clip: {timm: ..., weight: 0.5}}.
    teachers: dict[str, TeacherOptions] = field(default_factory=dict)
    # Students in addition to MODEL.TRUNK, which is judged: networks of timm's by names of yours,
    # {tiny: {model: vit_tiny_patch16_224}}. `--network tiny` judges and exports that one.
    students: dict[str, TimmOptions] = field(default_factory=dict)
    # cosine, mse, am_radio: of features; kl: of the scores of heads.
    form: str = choice(COSINE, MSE, KL, RADIO)
    # The feature of the teachers' trunks, a row for each image; empty: the final one. Not with kl.
    feature: str = ""
    # A factor on the loss of images, by `feature`.
    summary: float = at_least(0, 1.0)
    # A factor on the loss of patches, by the last map, or a vision transformer's patch tokens.
    patches: float = at_least(0, 0.0)
    # The width of a hidden layer in adaptors; 0: adaptors are linear.
    hidden: int = at_least(0, 0)
    # Standardise the teachers' features; null: if they are several.
    standardize: bool | None = None
    # Of the teacher's scores, with kl.
    teacher_temp: float = above(0, 0.04)
    # Of the student's scores, with kl.
    student_temp: float = above(0, 0.1)

    def check(self) -> Iterator[str]:
        if self.form == KL and self.feature:
            yield "feature: kl compares scores of heads, not features."
        if self.form == KL and self.patches:
            yield "patches: kl compares scores of heads; choose another form."
        if not self.summary + self.patches:
            yield "summary: it and patches are 0, so nothing is learned."
        for key in ("teacher", "student"):
            if key in getattr(self, f"{key}s"):
                yield f"{key}s.{key}: this is the name of the first; choose another."

    def parts(self) -> tuple[str, ...]:
        return (SUMMARY,) * bool(self.summary) + (PATCHES,) * bool(self.patches)


@register_loss(NAME, options=DistillationOptions)
class DistillationLoss(Method):
    def __init__(self, options: DistillationOptions, trunk: ViewTrunk, run: RunFacts) -> None:
        super().__init__()
        self.options, self.trunk = options, trunk
        self.pixels = run.normalize
        teacher = {"teacher": options.teacher}
        if options.teachers and not (options.teacher.weights or options.teacher.timm):
            teacher = {}
        self.given = teacher | options.teachers
        self.teachers = nn.ModuleDict({name: self._open(name) for name in self.given})
        self.students = nn.ModuleDict(
            {name: _build(each, trunk, run) for name, each in options.students.items()}
        )
        targets = {name: self._target_widths(each) for name, each in self.teachers.items()}
        self.adaptors = nn.ModuleDict({
            name: nn.ModuleDict({other: self._adapt(each, targets[other]) for other in targets})
            for name, each in self._all_students().items()
        })  # fmt: skip
        several = len(targets) > 1 if options.standardize is None else options.standardize
        self.scales = nn.ModuleDict({
            name: nn.ModuleDict({part: Standardize(width) for part, width in widths.items()})
            for name, widths in targets.items()
            if several
        })  # fmt: skip

    def forward(self, batch: Batch, step: Step) -> Any:
        wanted = {name: self._targets(name, batch, step) for name in self.teachers}
        terms: dict[str, Tensor] = {}
        total: Any = 0.0
        for student, trunk in self._all_students().items():
            made = _run(trunk, batch, self.options.parts())
            for teacher, targets in wanted.items():
                for part, target in targets.items():
                    adaptor: Any = self.adaptors[student]
                    term = self._compare(made[part], target, adaptor[teacher][part], part)
                    more = [student] * bool(self.students) + [teacher] * (len(wanted) > 1)
                    terms["_".join([*more, part])] = term
                    options: TeacherOptions = self.given[teacher]
                    factor = options.weight * getattr(self.options, part)
                    total = total + (term if factor == 1 else factor * term)
        return total if len(terms) == 1 else {"loss": total, **terms}

    def _all_students(self) -> dict[str, Any]:
        return {"student": self.trunk, **self.students}

    # ---- what teachers say

    def _open(self, name: str) -> FrozenNetwork:
        where = f"config.LOSS.{NAME}.{'' if name == 'teacher' else 'teachers.'}{name}"
        names = tuple(self.options.feature if each == SUMMARY else PATCHES
                      for each in self.options.parts())  # fmt: skip
        network = FrozenNetwork(self.given[name], where, self.options.form == KL, names)
        network.load(self.trunk)
        return network

    def _target_widths(self, teacher: Any) -> dict[str, int]:
        network = teacher.network
        outputs = output_widths(network, network.trunk)
        last = outputs[-1:] if self.options.form == KL else outputs
        return dict(zip(self.options.parts(), last, strict=True))

    def _targets(self, name: str, batch: Batch, step: Step) -> dict[str, list[Tensor]]:
        """Return what a teacher makes of each view: rows of images, and grids of patches."""
        found: dict[str, list[Tensor]] = {part: [] for part in self.options.parts()}
        scales: Any = self.scales[name] if self.scales else {}
        for images in batch.views:
            seen = self._show(images, self.given[name])
            output = self.teachers[name](seen, step)
            features = output if isinstance(output, (list, tuple)) else [output]
            features = features[-1:] if self.options.form == KL else features
            for part, feature in zip(found, features, strict=True):
                rows = _rows_of_patches(feature, seen) if part == PATCHES else feature.flatten(1)
                found[part].append(scales[part](rows, step) if scales else rows)
        return found

    def _show(self, images: Tensor, teacher: TeacherOptions) -> Tensor:
        """Return the images in the teacher's size and normalisation."""
        if teacher.mean:
            mean, std, own_mean, own_std = (
                images.new_tensor(each).view(-1, 1, 1)
                for each in (*self.pixels, teacher.mean, teacher.std)
            )
            images = (images * std + mean - own_mean) / own_std
        if teacher.size and images.shape[-2:] != (teacher.size, teacher.size):
            size = (teacher.size, teacher.size)
            images = F.interpolate(images, size, mode="bicubic", antialias=True)
        return images

    # ---- what students make of it

    def _adapt(self, trunk: ViewTrunk, targets: dict[str, int]) -> nn.ModuleDict:
        names, hidden = _names(trunk, (*targets,)), self.options.hidden
        widths = output_widths(lambda images: trunk.trunk(images, names), trunk.trunk)
        made: dict[str, nn.Module] = {}
        for (part, target), width in zip(targets.items(), widths, strict=True):
            linear = nn.Linear(hidden or width, target)
            before = [nn.Linear(width, hidden), nn.LayerNorm(hidden), nn.GELU()] if hidden else []
            made[part] = nn.Sequential(*before, linear) if hidden else linear
        return nn.ModuleDict(made)

    def _compare(
        self, made: list[Tensor], wanted: list[Tensor], adaptor: nn.Module, part: str
    ) -> Tensor:
        if part == PATCHES:
            pairs = [(_resize(s, t.shape[1:3]), t) for s, t in zip(made, wanted, strict=True)]
            made, wanted = [s.flatten(0, 2) for s, _ in pairs], [t.flatten(0, 2) for _, t in pairs]
        options, t = self.options, torch.cat(wanted)
        s = adaptor(torch.cat(made))
        if options.form == MSE:
            return F.mse_loss(s, t)
        if options.form == KL:
            log_p = (t / options.teacher_temp).log_softmax(dim=-1)
            log_q = (s / options.student_temp).log_softmax(dim=-1)
            return F.kl_div(log_q, log_p, reduction="batchmean", log_target=True)
        cosine = 1.0 - F.cosine_similarity(s, t, dim=-1).mean()
        mixed = options.form == RADIO and part == PATCHES
        return 0.9 * cosine + 0.1 * F.smooth_l1_loss(s, t) if mixed else cosine


class Standardize(nn.Module):
    """Centre targets, and divide them by one number; both are those of all rows of all ranks."""

    mean: Tensor
    variance: Tensor
    rows: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("variance", torch.ones(width))
        self.register_buffer("rows", torch.zeros((), dtype=torch.int64))

    @torch.no_grad()
    def forward(self, targets: Tensor, step: Step) -> Tensor:
        if step.train:
            self._update(targets.flatten(0, -2) - self.mean)
        return (targets - self.mean) / self.variance.mean().clamp(min=1e-12).sqrt()

    def _update(self, apart: Tensor) -> None:
        """Join the variances of earlier rows and of these (Chan et al.), given apart from mean."""
        own = torch.stack(
            [apart.sum(0), apart.square().sum(0), torch.full_like(apart[0], len(apart))]
        )
        total, square, count = sum_in_place(own)
        shift, share = total / count, count / (count + self.rows)
        variance = square / count - shift.square()
        self.variance.lerp_(variance, share).add_(shift.square() * share * (1 - share))
        self.mean.add_(shift * share)
        self.rows.add_(count[0].long())


def _build(options: TimmOptions, first: ViewTrunk, run: RunFacts) -> ViewTrunk:
    """Build a further student for the images of the first."""
    trunk = TrunkOptions(NAME="timm", TIMM=options)
    settings = ModelOptions(TRUNK=trunk, INPUT_CHANNELS=first.trunk.in_chans or "auto")
    model: Any = build_model(settings)
    if options.pretrained and not (run.resumes or next(model.parameters()).is_meta):
        init_weights(model, settings)
    return copy.deepcopy(lend(model, settings))  # which owns its trunk


def _names(trunk: ViewTrunk, parts: tuple[str, ...]) -> list[str]:
    last, dense = trunk.trunk.feature_names[-1], dense_feature(trunk.trunk)
    return [last if part == SUMMARY else dense for part in parts]


def _run(trunk: ViewTrunk, batch: Batch, parts: tuple[str, ...]) -> dict[str, list[Tensor]]:
    """Return what a student makes of each view, before its adaptors."""
    names = _names(trunk, parts)
    found = trunk(batch.views, maps=names)
    return {
        part: [
            _rows_of_patches(each, images) if part == PATCHES else each.flatten(1)
            for each, images in zip(found[name], batch.views, strict=True)
        ]
        for part, name in zip(parts, names, strict=True)
    }


def _rows_of_patches(feature: Tensor, images: Tensor) -> Tensor:
    """Return images x rows x columns x width, of a map or of patch tokens."""
    if feature.ndim == 4:
        return feature.permute(0, 2, 3, 1)
    height, width = images.shape[-2:]
    rows = round(math.sqrt(feature.shape[1] * height / width))
    return feature.reshape(len(feature), rows, -1, feature.shape[-1])


def _resize(patches: Tensor, grid: Any) -> Tensor:
    if patches.shape[1:3] == grid:
        return patches
    maps = F.interpolate(patches.permute(0, 3, 1, 2), tuple(grid), mode="bilinear")
    return maps.permute(0, 2, 3, 1)
