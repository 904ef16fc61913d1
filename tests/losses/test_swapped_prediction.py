"""The cross entropy between crops, against its sum written out."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from sslengine.losses.swapped_prediction import swapped_prediction


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
def test_value_and_gradient(
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
