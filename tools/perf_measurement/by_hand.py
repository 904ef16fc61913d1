"""Train steps of some methods written by hand, as their authors' pseudocode has them.

Each takes what the engine has built (`loss` is the method, `model` the network) and returns the
loss of a batch, and what follows the update. For counting launches and benchmarks on a GPU.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sslengine.methods import whole

Batch = dict[str, Any]
ByHand = tuple[Callable[[nn.Module, Batch], Tensor], list[Callable[[], None]]]


class Begun:
    """What the engine has built, in the first phase of its task."""

    task: Any

    def begin(self) -> None:
        self.task.prepare()
        self.task.on_start()
        self.task.start_phase()
        self.task.on_phase_start()

    @property
    def model(self) -> Any:
        return self.task.base_model

    @property
    def loss(self) -> Any:
        return self.task.loss


class Built(Protocol):
    @property
    def model(self) -> Any: ...

    @property
    def loss(self) -> Any: ...


def simclr(case: Built) -> ByHand:
    def loss(model: nn.Module, batch: Batch) -> Tensor:
        embeddings = F.normalize(model(batch["data"])[0])
        views = torch.arange(len(embeddings), device=embeddings.device)
        logits = (embeddings @ embeddings.T / case.loss.temperature).scatter(
            1, views[:, None], float("-inf")
        )
        return F.cross_entropy(logits, views.roll(len(views) // 2))

    return loss, []


def moco(case: Built) -> ByHand:
    """As the authors' pseudocode; the queue's place is a number of the host's."""
    teacher = copy.deepcopy(case.loss.key_encoder.module)
    queue, place = case.loss.queue.clone(), int(case.loss.queue_ptr)
    new: list[Tensor] = []

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        queries = F.normalize(model(batch["data"])[0])
        with torch.no_grad():
            keys = F.normalize(teacher(batch["data_momentum"])[0])
        new[:] = [keys]
        own = torch.einsum("nc,nc->n", queries, keys).unsqueeze(-1)
        logits = torch.cat([own, queries @ queue.clone().T], dim=1) / case.loss.temperature
        return F.cross_entropy(logits, queries.new_zeros(len(logits), dtype=torch.long))

    def enqueue() -> None:
        queue[place : place + len(new[0])] = new[0]

    return loss, [lambda: follow(teacher, case.model, 0.99), enqueue]


def dino(case: Built) -> ByHand:
    options, center = case.loss.options, case.loss.center.clone()
    teacher = copy.deepcopy(case.loss.momentum_teacher.module)

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        crops, images = batch["data"], len(batch["data_idx"]) // options.num_crops
        student = model(crops)[0].view(options.num_crops, images, -1) / options.student_temp
        with torch.no_grad():
            scores = teacher(crops[:2])[0].view(2, images, -1)
            targets = F.softmax((scores - center) / options.teacher_temp_max, dim=-1)
            center.mul_(0.9).add_(scores.mean(dim=(0, 1)), alpha=0.1)
        log_p = F.log_softmax(student, dim=-1)
        pairs = torch.einsum("abk,vbk->av", targets, log_p)
        others = pairs.sum() - pairs[0, 0] - pairs[1, 1]
        return -others / (2 * (options.num_crops - 1) * images)

    return loss, [lambda: follow(teacher, case.model, 0.99)]


def mae(case: Built) -> ByHand:
    """The authors' model is the engine's, and so is its loss."""
    return lambda model, batch: case.loss(whole.Batch({**batch, "input": batch["data"]}), None), []


@torch.no_grad()
def follow(teacher: nn.Module, model: nn.Module, momentum: float) -> None:
    theirs, ours = (list(each.parameters()) for each in (teacher, model))
    torch._foreach_lerp_([*theirs], [*ours], 1 - momentum)
