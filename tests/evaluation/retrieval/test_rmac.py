"""R-MAC against the regions of its authors' code (Tolias et al., as VISSL has it)."""

from __future__ import annotations

import pytest
import torch

from sslengine.contrib.retrieval.rmac import most_regions, region_maxima, regions, rmac
from sslengine.evaluation.retrieval.descriptors import Whitening, as_directions

# Of (height, width), three levels: how many regions, and those of the second level.
AUTHORS = {
    (7, 7): (14, [(0, 0, 4), (0, 3, 4), (3, 0, 4), (3, 3, 4)]),
    (32, 24): (20, [(top, left, 16) for top in (0, 8, 16) for left in (0, 8)]),
    (5, 13): (32, [(top, left, 3) for top in (0, 2) for left in (0, 2, 5, 7, 10)]),
}


@pytest.mark.parametrize("size", AUTHORS)
def test_regions_of_the_authors(size: tuple[int, int]) -> None:
    count, second = AUTHORS[size]
    found = regions(*size, levels=3)
    assert len(found) == count <= most_regions(3)
    side = sorted({each[2] for each in found})[-2]
    assert [each for each in found if each[2] == side] == second
    height, width = size
    assert all(top + side <= height and left + side <= width for top, left, side in found)


def test_descriptors_written_out() -> None:
    maps = torch.randn(1, 3, 6, 9, dtype=torch.float64)
    places = regions(6, 9, 2)
    maxima = [maps[0, :, top : top + s, left : left + s].flatten(1).max(dim=1).values
              for top, left, s in places]  # fmt: skip
    unit = torch.stack([each / each.norm() for each in maxima])
    assert torch.allclose(region_maxima(maps, 2)[0], unit)
    whiten = Whitening.fit(torch.randn(40, 3, dtype=torch.float64), 2)
    white = torch.stack([whiten(each[None])[0] for each in unit])
    total = (white / white.norm(dim=1, keepdim=True)).sum(dim=0)
    assert torch.allclose(rmac(maps, 2, whiten)[0], total / total.norm())


def test_cosines_in_the_order_of_distances() -> None:
    queries, database = torch.randn(5, 4).double(), 3 * torch.randn(50, 4).double()
    ours, theirs = as_directions(queries, database)
    cosines = torch.nn.functional.normalize(ours) @ torch.nn.functional.normalize(theirs).T
    expected = torch.cdist(queries, database).argsort(dim=1)
    assert cosines.argsort(dim=1, descending=True).tolist() == expected.tolist()
