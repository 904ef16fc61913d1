"""Several ranks against one process: the test that every method without a memory must pass.

Each rank has its share of the images of one batch and the same linear model. Averaged
over ranks, the loss and the gradient must be those of the whole batch in one process,
which a reference written from the paper tells.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from sslengine.distributed.ranks import rank, world_size
from tests.ranks import RankPool

IMAGES, PIXELS, WIDTH = 8, 5, 4

Reference = Callable[[Tensor, Tensor], Tensor]


class Step(NamedTuple):
    loss: float
    by_ddp: Tensor
    own: Tensor  # this rank's own gradient over the number of ranks


def assert_ranks_equal_one_process(pool: RankPool, loss: nn.Module, reference: Reference) -> None:
    """reference(view_0, view_1) is the loss of the whole batch's embeddings, in float64."""
    model = linear_model()
    expected = reference(*model(whole_batch()))
    expected.backward()
    steps: list[Step] = pool.run(_step, loss)
    mean = torch.tensor([step.loss for step in steps], dtype=torch.float64).mean()
    torch.testing.assert_close(mean, expected.detach(), rtol=1e-12, atol=1e-12)
    for step in steps:
        torch.testing.assert_close(step.by_ddp, model.weight.grad, rtol=1e-9, atol=1e-12)
    summed = torch.stack([step.own for step in steps]).sum(dim=0)
    torch.testing.assert_close(summed, model.weight.grad, rtol=1e-9, atol=1e-12)


def whole_batch() -> Tensor:
    """(2, IMAGES, PIXELS). No two ranks have images of the same mean or spread."""
    generator = torch.Generator().manual_seed(3)
    views = torch.randn(2, IMAGES, PIXELS, generator=generator, dtype=torch.float64)
    place = torch.arange(IMAGES, dtype=torch.float64).view(1, -1, 1)
    return views * (1 + place / IMAGES) + place / 4


def linear_model() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(PIXELS, WIDTH).double()


def _step(loss: nn.Module) -> Step:
    share = whole_batch().chunk(world_size(), dim=1)[rank()].reshape(-1, PIXELS)
    target = torch.arange(share.shape[0])
    plain = linear_model()
    value = _number(loss(plain(share), target))
    value.backward()
    wrapped = DistributedDataParallel(linear_model())
    _number(loss(wrapped(share), target)).backward()
    gradients = wrapped.module.weight.grad, plain.weight.grad
    assert gradients[0] is not None
    assert gradients[1] is not None
    return Step(value.item(), gradients[0], gradients[1] / world_size())


def _number(loss: Any) -> Tensor:
    value: Tensor = loss if isinstance(loss, Tensor) else loss["loss"]
    return value
