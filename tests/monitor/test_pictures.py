from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sslengine.errors import TrainingError
from sslengine.monitor.pictures import count, make_image, picture


@pytest.mark.parametrize("bins", [1, 7, 64])
def test_bins_are_numpys(bins: int) -> None:
    values = torch.randn(500, generator=torch.Generator().manual_seed(bins))
    opened = count("x", values.view(50, 10), bins)
    assert opened is not None
    histogram = opened.read()
    counts, edges = np.histogram(values.numpy(), bins)
    assert histogram.counts == counts.tolist()
    assert histogram.edges == pytest.approx(edges.tolist(), abs=1e-6)
    assert histogram.sum == pytest.approx(float(values.double().sum()))
    assert histogram.sum_of_squares == pytest.approx(float((values.double() ** 2).sum()))


def test_equal_values_are_one_bin_and_what_is_not_finite_is_in_none() -> None:
    same = count("x", torch.full((5,), 2.0), 4)
    assert same is not None
    assert sum(same.read().counts) == 5
    some = count("x", torch.tensor([0.0, torch.nan, 1.0, torch.inf, -torch.inf]), 2)
    assert some is not None
    assert some.read().counts == [1, 1]
    none = count("x", torch.full((3,), torch.nan), 2)
    assert none is not None
    assert none.read().counts == [0, 0]
    assert count("x", torch.zeros(0), 2) is None


def test_counting_reads_nothing_from_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: object, **__: object) -> None:
        raise AssertionError("the host waited for the device")

    for name in ("item", "tolist", "cpu", "numpy", "__bool__", "__float__"):
        monkeypatch.setattr(Tensor, name, forbidden)
    opened = count("x", torch.arange(6.0), 3)
    assert opened is not None
    with pytest.raises(AssertionError, match="waited"):
        opened.read()


COLOURS = np.arange(2 * 4 * 3, dtype=np.uint8).reshape(2, 4, 3)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (COLOURS, COLOURS),
        (torch.from_numpy(COLOURS).permute(2, 0, 1), COLOURS),
        (torch.from_numpy(COLOURS[..., :1]), COLOURS[..., 0]),
        (torch.tensor([[0.0, 0.5], [1.0, 7.0]]), np.array([[0, 128], [255, 255]], np.uint8)),
        (np.array([[0.0, 1.0]]), np.array([[0, 255]], np.uint8)),
        (torch.tensor([[-1.0, torch.nan]]), np.array([[0, 0]], np.uint8)),
    ],
)
def test_images_have_8_bits_and_colours_last(given: Any, expected: Any) -> None:
    image = make_image(picture("x", given))
    assert image.dtype == np.uint8
    assert np.array_equal(image, expected)


def test_a_picture_is_a_copy() -> None:
    given = torch.zeros(2, 2)
    kept = picture("x", given)
    given.fill_(1.0)
    assert not make_image(kept).any()


@pytest.mark.parametrize(
    "given", [torch.zeros(2), torch.zeros(2, 4, 4), torch.zeros(2, 2, dtype=torch.long), "x"]
)
def test_what_is_no_picture(given: Any) -> None:
    with pytest.raises(TrainingError, match=r"put_image\('x'\): expected .* got "):
        picture("x", given)


@pytest.mark.parametrize("bins", [0, 4])
def test_what_cannot_be_counted(bins: int) -> None:
    tensor = torch.zeros(2) if bins == 0 else torch.zeros(2, dtype=torch.complex64)
    with pytest.raises(TrainingError, match=r"put_histogram\('x'\): expected"):
        count("x", tensor, bins)
