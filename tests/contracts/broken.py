"""Components that break one promise each, which the suites must refuse by name."""

from __future__ import annotations

import random
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F

from sslengine.data.augment.transform import MakesViews
from sslengine.data.batch.collators import default_collate, only_moves
from sslengine.data.sources.base import DataSource
from sslengine.hooks.events import Hook
from sslengine.meters.base import Meter
from sslengine.methods.base import Method, Step
from sslengine.methods.teacher import Teacher


def agreement(output: Tensor) -> Tensor:
    one, two = F.normalize(output, dim=1).chunk(2)
    return (one - two).square().sum(dim=1).mean()


class Sound(nn.Module):
    """Breaks none."""

    def forward(self, output: Tensor, target: Any) -> Tensor:
        return agreement(output)


class QueueOutside(nn.Module):
    """Its queue is an attribute: lost with the process."""

    def __init__(self) -> None:
        super().__init__()
        self.queue: list[Tensor] = []

    def forward(self, output: Tensor, target: Any) -> Tensor:
        loss = agreement(output)
        for key in self.queue:
            loss = loss + 0.1 * (output @ key).mean()
        if self.training:
            self.queue = [*self.queue, output.detach().mean(dim=0)][-3:]
        return loss


class ForgetsTheHead(nn.Module):
    """No gradient reaches half of the outputs' layer ... nor anything below it."""

    def forward(self, output: Tensor, target: Any) -> Tensor:
        return agreement(output.detach().requires_grad_())


class NotANumber(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, output: Tensor, target: Any) -> Tensor:
        if self.training:
            self.steps += 1
        return agreement(output) * (2.5 - self.steps).log()


class MovesInTests(nn.Module):
    """Its centre follows test batches as well."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("centre", torch.zeros(8))

    def forward(self, output: Tensor, target: Any) -> Tensor:
        self.centre.lerp_(output.detach().mean(dim=0), 0.1)
        return agreement(output - self.centre)


class MovesAndForgets(MovesInTests):
    """Two promises at once."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = 0

    def forward(self, output: Tensor, target: Any) -> Tensor:
        self.steps += int(self.training)
        return super().forward(output, target)


class OwnCentreOnEachRank(nn.Module):
    """A buffer that is to be the same on all ranks, made of what one rank has."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("centre", torch.zeros(8))

    def forward(self, output: Tensor, target: Any) -> Tensor:
        if self.training:
            self.centre.lerp_(output.detach().mean(dim=0), 0.1)
        return agreement(output - self.centre)


class PredictsATeacher(Method):
    """As BYOL; its own predictor has a batch norm, whose statistics are each rank's. Breaks none."""

    def __init__(self) -> None:
        super().__init__()
        self.predictor = nn.Sequential(
            nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 8)
        )
        self.teacher = Teacher(momentum=0.9)

    def forward(self, output: Tensor, sample: Any, step: Step) -> Tensor:
        targets = self.teacher(sample["input"], step).chunk(2)
        return agreement(torch.cat([self.predictor(output), *targets[::-1]]))


class OwnCentreBesideIt(PredictsATeacher):
    """Has a buffer of one rank's images as well."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("centre", torch.zeros(8))

    def forward(self, output: Tensor, sample: Any, step: Step) -> Tensor:
        if step.train:
            self.centre.lerp_(output.detach().mean(dim=0), 0.1)
        return super().forward(output, sample, step)


class OfOneRank(nn.Module):
    """Compares the images of its own rank alone."""

    def forward(self, output: Tensor, target: Any) -> Tensor:
        centred = output - output.mean(dim=0)
        return agreement(output) + centred.T.matmul(centred).square().mean()


class ChangesWeights(Hook):
    """A hook is to observe."""

    def on_update(self, task: Any) -> None:
        with torch.no_grad():
            next(task.base_model.parameters()).mul_(0.99)


class ForgetsItsCount(Hook):
    def __init__(self) -> None:
        self.count = 0

    def on_step(self, task: Any) -> None:
        self.count += 1
        task.storage.put_scalar("count", self.count)


class AcrossImages(nn.Module):
    """In evaluation too what an image gives depends on the others."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(32, 8)

    def forward(self, features: Tensor) -> Tensor:
        return self.linear((features - features.mean(dim=0)).flatten(1))


class Mutates:
    """Draws a square into the image that it is given."""

    def __call__(self, image: Image.Image) -> Image.Image:
        image.paste(0, (0, 0, 4, 4))
        return image


class HasItsOwnDraws:
    """Its stream is not the one that is seeded for each sample."""

    def __init__(self) -> None:
        self.draw = random.Random(0)

    def __call__(self, image: Image.Image) -> Image.Image:
        return image.rotate(self.draw.uniform(0, 90))


class SaysTwo(MakesViews):
    def __call__(self, image: Image.Image) -> list[Image.Image]:
        return [image, image.copy(), image.copy()]

    @staticmethod
    def count_views() -> int:
        return 2


def drops_one(batch: Any) -> Any:
    return default_collate(batch[:-1])


@only_moves("data")
def changes_pixels(batch: Any) -> Any:
    made = default_collate(batch)
    return {**made, "data": [made["data"][0] * 0.5]}


class Pictures(DataSource):
    """A sound source; those below break what they override."""

    reads = ()
    num_classes = 2

    def __len__(self) -> int:
        return 6

    def image(self, index: int) -> Image.Image:
        return Image.new("RGB", (8, 8), (index + 1, 0, 0))

    def label(self, index: int) -> int:
        return index % 2


class HandsOutItsOwn(Pictures):
    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.kept: dict[int, Image.Image] = {}

    def image(self, index: int) -> Image.Image:
        return self.kept.setdefault(index, super().image(index))


class NamesNoFiles(Pictures):
    def files_of(self, rows: Any) -> list[str]:
        return ["image 0"]


class HasItsOwnRate(torch.optim.SGD):
    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, lr=0.1)

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            group["lr"] = 0.1
        super().step()


class MeansOfBatches(Meter):
    """The mean over batches of their means: batches of other sizes, other values."""

    name = "means_of_batches"

    def update(self, output: Tensor, target: Tensor) -> None:
        self.add(torch.stack([output.mean(), torch.ones(())]))

    def measure(self, totals: list[float]) -> dict[str, float]:
        return {"mean": totals[0] / totals[1]}


class CountsOutside(Meter):
    name = "counts_outside"

    def __init__(self) -> None:
        super().__init__()
        self.images = 0

    def reset(self) -> None:
        super().reset()
        self.images = 0

    def update(self, output: Tensor, target: Tensor) -> None:
        self.images += len(target)
        self.add(output.sum().reshape(1))

    def measure(self, totals: list[float]) -> dict[str, float]:
        return {"mean": totals[0] / self.images}
