"""SimSiam against equations 2 to 4 of the paper, at 1, 2 and 4 ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from sslengine.hooks.events import Hook
from sslengine.methods.simsiam import SimSiamLoss
from sslengine.models.heads.mlp import PredictorHead
from tests.engine.runs import make_task, train
from tests.methods.multi_rank import WIDTH, assert_ranks_equal_one_process
from tests.ranks import RankPool

HEAD = ["predictor_head", {"dims": [32, 16, 8], "predictor_dims": [8, 4, 8]}]
RECIPE: dict[str, Any] = {"LOSS__name": "simsiam_loss", "MODEL__HEAD__PARAMS": [HEAD]}


def distance(p: Tensor, z: Tensor) -> Tensor:
    """Equation 1 with the stop-gradient of equation 3, over a batch: D(p, stopgrad(z))."""
    constant = torch.tensor(z.tolist(), dtype=z.dtype)
    pairs = zip(p, constant, strict=True)
    return -sum((a / a.norm()) @ (b / b.norm()) for a, b in pairs) / len(p)


def equation_4(z_1: Tensor, z_2: Tensor, p_1: Tensor, p_2: Tensor) -> Tensor:
    return distance(p_1, z_2) / 2 + distance(p_2, z_1) / 2


def _loss() -> SimSiamLoss:
    return SimSiamLoss()


def _drawn(images: int, dim: int, seed: int) -> Tensor:
    """Projections and predictions of both views."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, 2 * images, dim, generator=generator, dtype=torch.float64)


@given(images=st.integers(1, 9), dim=st.integers(1, 17), seed=st.integers(0, 10_000))
def test_value_and_gradient(images: int, dim: int, seed: int) -> None:
    drawn = _drawn(images, dim, seed)
    ours, theirs = drawn.clone().requires_grad_(), drawn.clone().requires_grad_()
    loss = _loss()(list(ours))
    expected = equation_4(*theirs[0].chunk(2), *theirs[1].chunk(2))
    loss.backward()
    expected.backward()
    torch.testing.assert_close(loss, expected, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-7, atol=1e-12)


def test_the_projector_learns_through_the_predictor_alone() -> None:
    head = PredictorHead([6, 5, 4], [4, 3, 4], use_bn=False).double()
    x = torch.randn(8, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    _loss()(head(x)).backward()
    grads = {name: each.grad.clone() for name, each in head.named_parameters()}
    assert all(grad.abs().max() > 0 for grad in grads.values())
    head.zero_grad()
    with torch.no_grad():  # the targets, made by a forward pass of their own
        targets = head.projector(x)
    prediction = head.predictor(head.projector(x))
    equation_4(*targets.chunk(2), *prediction.chunk(2)).backward()
    for name, each in head.named_parameters():
        torch.testing.assert_close(grads[name], each.grad, rtol=1e-9, atol=1e-12)


def test_an_independent_implementation_agrees() -> None:
    theirs = pytest.importorskip("lightly.loss").NegativeCosineSimilarity()
    projection, prediction = _drawn(6, 5, seed=1)
    (z_1, z_2), (p_1, p_2) = projection.chunk(2), prediction.chunk(2)
    expected = (theirs(p_1, z_2) + theirs(p_2, z_1)) / 2
    torch.testing.assert_close(_loss()([projection, prediction]), expected)


# ---- several ranks


class OfEmbeddings(nn.Module):
    """The loss of a plain model: its embeddings are the projections, scaled they are predictions.

    Each dimension by another factor, so that a prediction is not parallel to its projection.
    """

    def __init__(self) -> None:
        super().__init__()
        self.loss = _loss()

    def forward(self, embedding: Tensor, target: Tensor) -> Tensor:
        return self.loss([embedding, embedding * SCALES])


SCALES = torch.linspace(-1, 2, WIDTH, dtype=torch.float64)


@pytest.mark.parametrize("pool", [2, 4], indirect=True)
def test_ranks_together_equal_one_process_with_the_whole_batch(pool: RankPool) -> None:

    def reference(view_0: Tensor, view_1: Tensor) -> Tensor:
        return equation_4(view_0, view_1, view_0 * SCALES, view_1 * SCALES)

    assert_ranks_equal_one_process(pool, OfEmbeddings(), reference)


# ---- whole runs


class Rates(Hook):
    def __init__(self) -> None:
        self.seen: list[dict[str, float]] = []

    def on_update(self, task: Any) -> None:
        groups = task.optimizer.inner.param_groups
        self.seen.append({group["name"]: group["lr"] for group in groups})


PREDICTOR_APART: dict[str, Any] = {
    **RECIPE,
    "OPTIMIZER__param_group_constructor": "predictor_alone_is_head",
    "OPTIMIZER__head_optimizer_params": {"use_different_lr": True},
    "OPTIMIZER__param_schedulers__lr_head": {"name": "constant", "value": 0.1},
}


def test_the_predictors_learning_rate_is_constant(tmp_path: Path) -> None:
    rates = Rates()
    train(tmp_path, [rates], **PREDICTOR_APART)
    first, *_, last = rates.seen
    predictor = {name for name in first if name.startswith("predictor")}
    assert predictor
    assert predictor < set(first)
    for name in first:
        assert first[name] == pytest.approx(0.1)
        assert last[name] == first[name] if name in predictor else last[name] < first[name] / 2


@pytest.mark.parametrize("module", ["", "sslengine.methods.simsiam:"])
def test_the_predictor_alone_is_apart(module: str, tmp_path: Path) -> None:
    name = {"OPTIMIZER__param_group_constructor": f"{module}predictor_alone_is_head"}
    task = make_task(tmp_path, [], **{**PREDICTOR_APART, **name})
    head = task.base_model.heads[0]
    apart = {
        id(each)
        for group in task.optimizer.inner.param_groups
        if group["name"].startswith("predictor")
        for each in group["params"]
    }
    assert apart == {id(each) for each in head.predictor.parameters()}


# ---- what a user can get wrong
