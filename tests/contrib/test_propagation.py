"""Labels that are carried through videos, and the measures of their regions and contours."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from sslengine.contrib import propagation
from sslengine.contrib.propagation import Propagation, answers, contour, region

Array = NDArray[np.float64]


def _carried(features: Array, context: list[tuple[Array, Array]], radius: int) -> Array:
    """features: h x w x D; context: such features, and h x w x C."""
    high, wide, _ = features.shape
    found = np.zeros((high, wide, context[0][1].shape[-1]))
    for i in range(high):
        for j in range(wide):
            all_weights = []
            for known, labels in context:
                for p in range(max(0, i - radius), min(high, i + radius + 1)):
                    for q in range(max(0, j - radius), min(wide, j + radius + 1)):
                        lengths = np.linalg.norm(features[i, j]) * np.linalg.norm(known[p, q])
                        cosine = features[i, j] @ known[p, q] / lengths
                        all_weights.append((np.exp(cosine / 0.1), labels[p, q]))
            best = sorted(all_weights, key=lambda each: -each[0])[:5]
            found[i, j] = sum(w * of for w, of in best) / sum(w for w, _ in best)
    return found


@pytest.mark.parametrize(("high", "wide", "radius"), [(5, 7, 2), (14, 3, 12), (1, 2, 12)])
def test_labels_are_carried_as_by_the_formula(
    high: int, wide: int, radius: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eleven frames: the first one stays, of the others the last seven."""
    monkeypatch.setattr(propagation, "RADIUS", radius)
    draw = np.random.default_rng(0)
    frames = draw.normal(size=(11, high, wide, 4))
    first = np.eye(3)[draw.integers(0, 3, (high, wide))]
    own: Any = Propagation(
        *(torch.from_numpy(each).permute(2, 0, 1) for each in (frames[0], first))
    )
    last: list[tuple[Array, Array]] = []
    for frame in frames[1:]:
        wanted = _carried(frame, [(frames[0], first), *last[-7:]], radius)
        last.append((frame, wanted))
        found = own.next(torch.from_numpy(frame).permute(2, 0, 1))
        np.testing.assert_allclose(found.permute(1, 2, 0).numpy(), wanted, rtol=1e-9, atol=1e-12)
    assert len(last) > 8
    np.testing.assert_allclose(wanted.sum(axis=-1), 1)


def test_a_patch_as_similar_as_the_fifth_has_a_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with DINO: of patches that are all the same, all in the window."""
    monkeypatch.setattr(propagation, "RADIUS", 1)
    labels = torch.zeros(2, 1, 9)
    labels[1, 0, 3:6] = 1
    labels[0] = 1 - labels[1]
    found = Propagation(torch.ones(4, 1, 9), labels).next(torch.ones(4, 1, 9))
    wanted = torch.tensor([0, 0, 1, 2, 3, 2, 1, 0, 0]) / 3
    torch.testing.assert_close(found[1, 0], wanted)


def test_a_faint_object_is_not_lost() -> None:
    """Each object's shares are brought to 0 to 1: 0.2 at most is enough. One without any is none."""
    labels = torch.zeros(3, 2, 2)
    labels[1, 0, 1] = 0.2
    labels[0] = 1 - labels[1]
    assert answers(labels, (2, 2)).tolist() == [[0, 1], [0, 0]]
    large = answers(labels, (8, 6))
    assert large.shape == (8, 6)
    assert large[0, -1] == 1
    assert set(large.unique().tolist()) == {0, 1}


# ---- J and F against sets of pixels, and contours counted by hand.


Mask = NDArray[np.bool_]


def _set(mask: Mask) -> set[tuple[int, int]]:
    return {(int(y), int(x)) for y, x in np.argwhere(mask)}


def _edge(mask: Mask) -> set[tuple[int, int]]:
    """Pixels that differ from a following one: right, below, right below."""
    high, wide = mask.shape
    steps = ((0, 1), (1, 0), (1, 1))
    return {
        (y, x)
        for y, x in itertools.product(range(high), range(wide))
        if any(mask[y, x] != mask[min(y + dy, high - 1), min(x + dx, wide - 1)] for dy, dx in steps)
    }


def _f(found: Mask, wanted: Mask) -> float:
    bound = math.ceil(0.008 * math.hypot(*found.shape))
    own, other = _edge(found), _edge(wanted)

    def share(some: set[tuple[int, int]], of: set[tuple[int, int]]) -> float:
        matched = sum(any(math.dist(a, b) <= bound for b in of) for a in some)
        return matched / len(some) if some else 1.0

    precision, recall = share(own, other), share(other, own)
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


def _masks(count: int, shape: tuple[int, int], seed: int) -> Mask:
    """Blocks of 5 x 5, with some pixels turned."""
    draw = np.random.default_rng(seed)
    coarse = draw.random((count, shape[0] // 5 + 1, shape[1] // 5 + 1)) < 0.4
    full = coarse.repeat(5, 1).repeat(5, 2)[:, : shape[0], : shape[1]]
    return np.asarray(full ^ (draw.random(full.shape) < 0.02))


@pytest.mark.parametrize("shape", [(23, 31), (150, 40)])  # the bound is 1 and 2 pixels
def test_measures_are_those_of_sets_of_pixels(shape: tuple[int, int]) -> None:
    found, wanted = _masks(4, shape, 0), _masks(4, shape, 1)
    wanted[1] = np.roll(found[1], 1, axis=1)
    found[2] = False
    given = [torch.from_numpy(each) for each in (found, wanted)]
    sets = [(_set(a), _set(b)) for a, b in zip(found, wanted)]
    assert region(*given).tolist() == pytest.approx([len(a & b) / len(a | b) for a, b in sets])
    assert contour(*given).tolist() == pytest.approx([_f(a, b) for a, b in zip(found, wanted)])
    assert contour(*given)[2] == 0


def test_a_square_by_hand() -> None:
    """Of 60 x 80 pixels the bound is 0.8, so 1 pixel. A square of side 10, moved by 3.

    Its contour has 11 pixels on each side, at its left and upper edge outside: 40 in all. Of the
    moved one the pixels of the upper and lower edge match where they are over the other, or one
    beside it, and none of the right and left edge but their ends.
    """
    mask = torch.zeros(3, 60, 80, dtype=torch.bool)
    mask[0, 20:30, 30:40] = True
    mask[1, 20:30, 33:43] = True
    mask[2, 20:30, 31:41] = True
    assert region(mask[:1], mask[1:2]).item() == pytest.approx(70 / 130)
    # Columns 29 to 39, and 32 to 42: 32 to 39 are shared, 40 and 31 are beside. So 9 on each of two
    # edges; of a vertical edge in column 32 rows 20 and 28 are beside the edges' rows 19 and 29.
    # Likewise of column 39 of the other: 2 x 9 + 2 of 40.
    assert contour(mask[:1], mask[1:2]).item() == pytest.approx(20 / 40)
    assert contour(mask[:1], mask[2:]).item() == 1  # moved by the bound
    none = torch.zeros(1, 60, 80, dtype=torch.bool)
    assert region(none, none).item() == contour(none, none).item() == 1
    assert region(none, mask[:1]).item() == contour(mask[:1], none).item() == 0
