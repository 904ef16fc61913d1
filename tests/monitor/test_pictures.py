from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sslengine.monitor.store import Histogram, count, make_image, read_histogram


def _counted(values: Tensor, bins: int) -> Histogram:
    return read_histogram(count(values, bins))


@pytest.mark.parametrize("bins", [1, 7, 64])
def test_bins_are_numpys(bins: int) -> None:
    values = torch.randn(500, generator=torch.Generator().manual_seed(bins))
    histogram = _counted(values.view(50, 10), bins)
    counts, edges = np.histogram(values.numpy(), bins)
    assert histogram.counts == counts.tolist()
    assert histogram.edges == pytest.approx(edges.tolist(), abs=1e-6)
    assert histogram.sum == pytest.approx(float(values.double().sum()))
    assert histogram.sum_of_squares == pytest.approx(float((values.double() ** 2).sum()))


def test_equal_values_are_one_bin_and_what_is_not_finite_is_in_none() -> None:
    assert sum(_counted(torch.full((5,), 2.0), 4).counts) == 5
    some = torch.tensor([0.0, torch.nan, 1.0, torch.inf, -torch.inf])
    assert _counted(some, 2).counts == [1, 1]
    assert _counted(torch.full((3,), torch.nan), 2).counts == [0, 0]


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
    image = make_image(torch.as_tensor(given))
    assert image.dtype == np.uint8
    assert np.array_equal(image, expected)
