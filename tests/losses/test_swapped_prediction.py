"""The cross entropy between crops, against its sum written out, and what a run must give it."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from sslengine.config.facts import RunFacts
from sslengine.errors import ConfigError
from sslengine.losses.swapped_prediction import check_crops, swapped_prediction


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


FACTS = {"views_per_image": 4, "collator": "multicrop_collator"}


def _check(sources: list[int], **facts: object) -> None:
    check_crops(
        "config.LOSS.x", "crops", sources, RunFacts(**{**FACTS, **facts}), ["multicrop_collator"]
    )  # type: ignore[arg-type]


def test_what_fits_passes() -> None:
    _check([0, 3])


@pytest.mark.parametrize(
    ("sources", "facts", "text"),
    [
        ([0], {"views_per_image": 1}, "TRANSFORMS make 1.*ImgPilToMultiCrop"),
        ([0], {"collator": "default_collate"}, "COLLATE_FUNCTION must be multicrop_collator"),
        ([], {}, r"config.LOSS.x.crops: .*from 0 to 3.*got \[\]"),
        ([0, 0], {}, "expected different numbers"),
        ([0, 4], {}, "from 0 to 3"),
        ([-1], {}, "from 0 to 3"),
    ],
)
def test_what_does_not_fit_is_told(sources: list[int], facts: dict[str, object], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        _check(sources, **facts)
