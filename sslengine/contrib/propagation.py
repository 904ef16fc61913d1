"""Carry the masks of a video's first frame to its other frames by frozen patches; measure them.

A patch gets the labels of the most similar patches in the first frame and in the last few ones:
cosine, within a window around its own place. Labels stay shares of the objects from frame to frame.
As DINO evaluates DAVIS-2017 (eval_video_segmentation.py), after Jabri et al. 2020.

How well a region was found, as DAVIS measures it (Perazzi et al. 2016):

J   region: Jaccard's index
F   contour: the harmonic mean of precision and recall of the contours' pixels. One is matched by
    a pixel of the other contour within 0.008 of the image's diagonal, in whole pixels, rounded up
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

BOUND = 0.008


def region(found: Tensor, wanted: Tensor) -> Tensor:
    """N: J of N x H x W booleans; 1 where both are empty."""
    both, either = ((each).sum(dim=(1, 2)) for each in (found & wanted, found | wanted))
    return torch.where(either > 0, both.double() / either.clamp(min=1), 1.0)


def contour(found: Tensor, wanted: Tensor) -> Tensor:
    """N: F of N x H x W booleans; 1 where neither has a contour, 0 where one has none."""
    radius = math.ceil(BOUND * math.hypot(*found.shape[1:]))
    own, other = _contours(found), _contours(wanted)
    precision, recall = _share(own, _grown(other, radius)), _share(other, _grown(own, radius))
    return 2 * precision * recall / (precision + recall).clamp(min=1e-12)


def _contours(regions: Tensor) -> Tensor:
    """Pixels that differ from the one to the right, below, or right below; outside continues."""
    padded = F.pad(regions[:, None].float(), (0, 1, 0, 1), mode="replicate")[:, 0] > 0
    here = padded[:, :-1, :-1]
    return (
        (here ^ padded[:, :-1, 1:]) | (here ^ padded[:, 1:, :-1]) | (here ^ padded[:, 1:, 1:])
    )  # fmt: skip


def _grown(contours: Tensor, radius: int) -> Tensor:
    """Grow contours by a disk."""
    steps = torch.arange(-radius, radius + 1, device=contours.device)
    disk = (steps[:, None] ** 2 + steps**2 <= radius**2).float()
    return F.conv2d(contours[:, None].float(), disk[None, None], padding=radius)[:, 0] > 0.5


def _share(contours: Tensor, matching: Tensor) -> Tensor:
    """Return the share of the pixels that match; 1 of none."""
    count = contours.sum(dim=(1, 2))
    matched = (contours & matching).sum(dim=(1, 2)).double()
    return torch.where(count > 0, matched / count.clamp(min=1), 1.0)


LAST, RADIUS, MOST, TEMPERATURE = 7, 12, 5, 0.1


class Propagation:
    """Of one video."""

    def __init__(self, features: Tensor, labels: Tensor) -> None:
        """Start with the first frame: D x h x w, and shares of objects in patches, C x h x w."""
        self._first = F.normalize(features, dim=0), labels
        self._last: deque[tuple[Tensor, Tensor]] = deque(maxlen=LAST)

    def next(self, features: Tensor) -> Tensor:
        """C x h x w: the labels of the next frame's patches."""
        unit = F.normalize(features, dim=0)
        labels = carried(unit, [self._first, *self._last])
        self._last.append((unit, labels))
        return labels


@torch.no_grad()
def carried(unit: Tensor, context: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """unit: D x h x w, of length 1. context: such features, and labels C x h x w."""
    high, wide = unit.shape[1:]
    features = torch.stack([each for each, _ in context], dim=1)  # D x n x h x w
    labels = torch.stack([each for _, each in context], dim=1)
    columns = torch.arange(wide, device=unit.device)
    near = (columns[:, None] - columns).abs() <= RADIUS
    rows = []
    for row in range(high):  # all patches with all at once would not fit into the memory
        inside = slice(max(0, row - RADIUS), row + RADIUS + 1)
        known = features[:, :, inside].flatten(1, 2)  # D x (n rows) x w
        similar = torch.einsum("dt,dks->tks", unit[:, row], known)
        weights = (similar / TEMPERATURE).exp() * near[:, None]
        rows.append(labels[:, :, inside].flatten(1) @ _keep_most(weights.flatten(1)).T)
    return torch.stack(rows, dim=1)


def _keep_most(weights: Tensor) -> Tensor:
    """Keep of each row the MOST largest, and what equals the last of them; their sum is 1."""
    last = weights.topk(min(MOST, weights.shape[1]), dim=1).values[:, -1:]
    kept = torch.where(weights >= last, weights, 0)
    return kept / kept.sum(dim=1, keepdim=True)


def answers(labels: Tensor, size: tuple[int, int]) -> Tensor:
    """H x W: the number of the object that has most of each pixel. labels: C x h x w.

    Each object's shares are brought to 0 to 1 in the frame: a small one is not lost.
    """
    full = F.interpolate(labels[None], size=size, mode="bilinear", align_corners=False)[0]
    least, most = full.amin(dim=(1, 2), keepdim=True), full.amax(dim=(1, 2), keepdim=True)
    return ((full - least) / (most - least).clamp(min=1e-12)).argmax(dim=0)
