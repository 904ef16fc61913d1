"""Chance: what features that know nothing would score."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
import torch

from sslengine.engines.scoring import chance


def test_of_one_class_each_the_most_frequent_of_train() -> None:
    labels, wanted = torch.tensor([0, 1, 1, 2]), torch.tensor([1, 1, 0, 2, 2])
    assert chance(labels, wanted) == pytest.approx(40.0)


@pytest.mark.parametrize(("images", "shown"), [(8, 4), (9, 2), (5, 1)])
def test_of_several_classes_all_orders_are_as_likely(images: int, shown: int) -> None:
    """VOC's definition over all places that the class's images can have in the order."""
    found = []
    for places in combinations(range(1, images + 1), shown):
        precisions = [number / place for number, place in enumerate(places, 1)]
        found.append(np.mean([max(precisions[number:]) for number in range(shown)]))
    wanted = (torch.arange(images) < shown).long()[:, None].repeat(1, 40)
    wanted = torch.cat([wanted, -torch.ones(3, 40).long()])  # not known: not in the order
    assert chance(wanted, wanted) == pytest.approx(100 * np.mean(found), abs=1.5)
    assert 100 * np.mean(found) > 100 * shown / images + 5
