"""What both views of an output, and swapped predictions of views, cost."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from sslengine.errors import TrainingError
from sslengine.losses.views import (
    cross_view_cosine,
    projection_and_prediction,
    swapped_prediction,
)

# ---- cross view


def by_pairs(predictions: Tensor, targets: Tensor) -> Tensor:
    """Image by image: p_1 with z_2, p_2 with z_1."""
    images = len(predictions) // 2
    pairs = ((k, images + k) for k in range(images))
    cosines = [
        p @ z / (p.norm() * z.norm())
        for one, two in pairs
        for p, z in ((predictions[one], targets[two]), (predictions[two], targets[one]))
    ]
    return sum(cosines, torch.zeros((), dtype=predictions.dtype)) / len(cosines)


@given(
    images=st.integers(1, 7),
    dim=st.integers(1, 9),
    scale=st.sampled_from([1e-3, 1.0, 1e8]),
    seed=st.integers(0, 10_000),
)
def test_value_and_gradient(images: int, dim: int, scale: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    drawn = scale * torch.randn(2, 2 * images, dim, generator=generator, dtype=torch.float64)
    ours, theirs = drawn.clone().requires_grad_(), drawn.clone().requires_grad_()
    value, expected = cross_view_cosine(*ours), by_pairs(*theirs)
    value.backward()
    expected.backward()
    torch.testing.assert_close(value, expected, rtol=1e-10, atol=1e-12)
    assert ours.grad is not None
    assert theirs.grad is not None
    torch.testing.assert_close(scale * ours.grad, scale * theirs.grad, rtol=1e-7, atol=1e-10)


def test_zero_vectors_stay_finite() -> None:
    zeros = torch.zeros(4, 3, requires_grad=True)
    value = cross_view_cosine(zeros, torch.ones(4, 3))
    value.backward()
    assert value.item() == 0
    assert torch.isfinite(zeros.grad).all()


PAIRS = [torch.ones(4, 3), [torch.ones(4, 3)], [torch.ones(3, 3)] * 2, [torch.ones(4)] * 2]
UNEQUAL = [[torch.ones(4, 3), torch.ones(4, 2)], [torch.ones(4, 3)] * 3, None]


@pytest.mark.parametrize("output", [*PAIRS, *UNEQUAL])
def test_any_other_output_is_refused(output: object) -> None:
    with pytest.raises(TrainingError, match="my_loss needs .projection, prediction.*returned"):
        projection_and_prediction(output, "my_loss")


# ---- The cross entropy between crops, against its sum written out.


def written_out(targets: Tensor, log_p: Tensor, sources: list[int]) -> Tensor:
    terms = [
        -(target[image] * log_p[crop, image]).sum()
        for target, source in zip(targets, sources, strict=True)
        for crop in range(len(log_p))
        if crop != source
        for image in range(log_p.shape[1])
    ]
    return torch.stack(terms).mean()


def _random(*shape: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


@given(
    crops=st.integers(2, 6),
    images=st.integers(1, 5),
    prototypes=st.integers(1, 6),
    seed=st.integers(0, 10_000),
    data=st.data(),
)
def test_value_and_gradient_swapped_prediction(
    crops: int, images: int, prototypes: int, seed: int, data: st.DataObject
) -> None:
    sources = data.draw(st.lists(st.integers(0, crops - 1), min_size=1, unique=True))
    targets = _random(len(sources), images, prototypes, seed=seed).softmax(-1)
    ours = _random(crops, images, prototypes, seed=seed + 1).log_softmax(-1).requires_grad_()
    theirs = ours.detach().clone().requires_grad_()
    loss = swapped_prediction(targets, ours, sources)
    expected = written_out(targets, theirs, sources)
    loss.backward()
    expected.backward()
    torch.testing.assert_close(loss, expected, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-10, atol=1e-12)
