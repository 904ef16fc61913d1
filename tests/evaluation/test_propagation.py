"""Masks carried through a video, against DINO's formula as plain loops in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from sslengine.contrib import propagation
from sslengine.contrib.propagation import Propagation, answers

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
