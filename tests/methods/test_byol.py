"""BYOL against equation 2 and the target's update in the paper, at 1, 2 and 4 ranks."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from sslengine.config.facts import RunFacts
from sslengine.distributed.ranks import rank, world_size
from sslengine.methods.byol import BYOLLoss, BYOLOptions
from sslengine.methods.step import Step
from tests.engine.runs import make_task, same, train, weights
from tests.ranks import RankPool

HEAD = ["predictor_head", {"dims": [32, 16, 8], "predictor_dims": [8, 4, 8]}]
RECIPE: dict[str, Any] = {"LOSS__name": "byol_loss", "MODEL__HEAD__PARAMS": [HEAD]}


def equation_2(q: Tensor, z: Tensor) -> Tensor:
    """The squared distance of the normalised prediction and target, over a batch."""
    constant = torch.tensor(z.tolist(), dtype=z.dtype)
    pairs = zip(q, constant, strict=True)
    return sum((a / a.norm() - b / b.norm()).square().sum() for a, b in pairs) / len(q)


def both_directions(prediction: Tensor, target: Tensor) -> Tensor:
    """L + L~: each view predicts the other's target."""
    (q_1, q_2), (z_1, z_2) = prediction.chunk(2), target.chunk(2)
    return equation_2(q_1, z_2) + equation_2(q_2, z_1)


def _loss(momentum: float = 0.99) -> BYOLLoss:
    return BYOLLoss(BYOLOptions(momentum), RunFacts(views_per_image=2))


def _value(output: list[Tensor], targets: Tensor) -> Tensor:
    """With a teacher that gives these projections."""
    method = _loss()
    method.teacher.attach(nn.Identity())
    return method(output, {"input": [targets, targets]}, Step.alone())


def _drawn(images: int, dim: int, seed: int) -> Tensor:
    """The model's predictions and the teacher's projections, of both views."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, 2 * images, dim, generator=generator, dtype=torch.float64)


@given(images=st.integers(1, 9), dim=st.integers(1, 17), seed=st.integers(0, 10_000))
def test_value_and_gradient(images: int, dim: int, seed: int) -> None:
    drawn = _drawn(images, dim, seed)
    ours, theirs = drawn[0].clone().requires_grad_(), drawn[0].clone().requires_grad_()
    loss = _value([torch.full_like(ours, 9.0), ours], drawn[1])
    expected = both_directions(theirs, drawn[1])
    loss.backward()
    expected.backward()
    torch.testing.assert_close(loss, expected, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-7, atol=1e-12)


def test_an_independent_implementation_agrees() -> None:
    cosine = pytest.importorskip("lightly.loss").NegativeCosineSimilarity()
    prediction, target = _drawn(6, 5, seed=1)
    (q_1, q_2), (z_1, z_2) = prediction.chunk(2), target.chunk(2)
    expected = 4 + 2 * cosine(q_1, z_2) + 2 * cosine(q_2, z_1)
    torch.testing.assert_close(_value([target, prediction], target), expected)


# ---- several ranks: linear models, each rank with its share of the images

IMAGES, PIXELS = 8, 5


class Pair(nn.Module):
    """A projector and a predictor."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.project, self.predict = nn.Linear(PIXELS, 4).double(), nn.Linear(4, 4).double()

    def forward(self, x: Tensor) -> list[Tensor]:
        projection = self.project(x)
        return [projection, self.predict(projection)]


def _share() -> Tensor:
    views = _drawn(IMAGES, PIXELS, seed=3)[0].view(2, IMAGES, PIXELS)
    return views.chunk(world_size(), dim=1)[rank()].reshape(-1, PIXELS)


def _gradients(model: nn.Module, bare: Pair) -> list[Tensor]:
    method = _loss()
    method.teacher.attach(Pair(seed=1))
    method(model(_share()), {"input": _share()}, Step.alone()).backward()
    return [each.grad for each in bare.parameters()]


def _on_this_rank() -> tuple[list[Tensor], list[Tensor]]:
    """(the gradients that DDP leaves, this rank's own divided by the ranks)"""
    plain, inside = Pair(), Pair()
    by_ddp = _gradients(DistributedDataParallel(inside), inside)
    return by_ddp, [each / world_size() for each in _gradients(plain, plain)]


@pytest.mark.parametrize("pool", [2, 4], indirect=True)
def test_ranks_together_equal_one_process_with_the_whole_batch(pool: RankPool) -> None:
    model, teacher = Pair(), Pair(seed=1)
    both_directions(model(_share())[1], teacher(_share())[0]).backward()
    results = pool.run(_on_this_rank)
    for index, parameter in enumerate(model.parameters()):
        for by_ddp, _ in results:
            torch.testing.assert_close(by_ddp[index], parameter.grad, rtol=1e-9, atol=1e-12)
        summed = torch.stack([own[index] for _, own in results]).sum(dim=0)
        torch.testing.assert_close(summed, parameter.grad, rtol=1e-9, atol=1e-12)


# ---- whole runs


def test_the_teacher_has_statistics_of_its_own(tmp_path: Path) -> None:
    """In training it sees batches as the model does, in train mode: its statistics move."""
    task = train(tmp_path, [], **RECIPE, OPTIMIZER__num_epochs=1)
    name = "heads.0.projector.0.clf.1.running_mean"
    teacher, model = task.loss.teacher.module.state_dict()[name], task.base_model.state_dict()[name]
    assert teacher.abs().max() > 0
    assert not torch.equal(teacher, model)


# ---- what a user can get wrong


def test_views_apart_pass_the_teacher_apart(tmp_path: Path) -> None:
    """Its batch norms have seen two batches a step, and its targets are of one view each."""
    task = make_task(tmp_path, [], **RECIPE, MODEL__VIEWS_APART=True)
    task.on_start()
    task.start_phase()
    task.on_phase_start()
    teacher, seen = task.loss.teacher, []
    before = copy.deepcopy(teacher.module)
    teacher.register_forward_hook(lambda *arguments: seen.append(arguments[2]))
    task.step()
    views = task.last_batch.sample["input"].chunk(2)
    before.views_apart = 0
    expected = torch.cat([before(view)[0] for view in views])
    torch.testing.assert_close(seen[0], expected)
    norm = teacher.module.trunk.bn1
    assert norm.num_batches_tracked == 2
    torch.testing.assert_close(norm.running_mean, before.trunk.bn1.running_mean)
    task.close()


def test_views_apart_over_ranks_with_accumulation_and_autocast(
    two_ranks: RankPool, tmp_path: Path
) -> None:
    """Ranks end with the same weights, and every batch norm has had a batch for each view."""
    ways = {
        "DISTRIBUTED__NUM_PROC_PER_NODE": 2,
        "OPTIMIZER__num_epochs": 1,
        "OPTIMIZER__accumulate": 2,
        "MODEL__AMP_PARAMS": {"USE_AMP": True, "AMP_TYPE": "pytorch", "AMP_DTYPE": "bfloat16"},
        "MODEL__SYNC_BN_CONFIG": {"CONVERT_BN_TO_SYNC_BN": True, "GROUP_SIZE": 0},
    }
    after = two_ranks.run(_weights_after, tmp_path, {**ways, "MODEL__VIEWS_APART": True})
    assert same(*after)
    batches = {int(each) for name, each in after[0].items() if name.endswith("batches_tracked")}
    assert batches == {4}  # two batches of four images, of two views


def _weights_after(folder: Path, changes: dict[str, Any]) -> dict[str, Tensor]:
    return weights(train(folder / str(rank()), [], **RECIPE, **changes))
