"""The jigsaw pretext task: patches of an image in an order that the model predicts.

The permutations are easy to tell apart. One is taken at random, and then from all there are, again
and again, the one that differs in the most places from those taken so far. In "Unsupervised
Learning of Visual Representations by Solving Jigsaw Puzzles" (Noroozi and Favaro, 2016) the average
over those decides; but it is equal for many, some of which differ from one of them in two places
alone. So the nearest decides first, which does not change the average.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import permutations
from math import factorial
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sslengine.data.augment.transform import MakesLabel, Transform, expect
from sslengine.registry import register_transform

GENERATOR = "sslengine make permutations"

# All permutations are tried: with ten pieces there would be millions.
MOST_PIECES = 9

# More than the distances from all that are taken can sum up to.
BEYOND_TOTAL = 1 << 40

Permutations = NDArray[np.int64]


@register_transform("ImgPatchesFromTensor")
class ImgPatchesFromTensor(Transform):
    """A tensor of patches, num_patches x C x h x w, from a square grid, column by column.

    Each patch is a cell of the grid less patch_jitter pixels a side, at a random place in
    it, so that edges of neighbours do not meet.
    """

    def __init__(self, num_patches: int = 9, patch_jitter: int = 21) -> None:
        """
        num_patches: a square number.
        patch_jitter: by how many pixels each side of a patch is smaller than its cell.
        """
        self.side = math.isqrt(max(0, num_patches))
        expect(self.side**2 == num_patches >= 1, "num_patches", "a square number", num_patches)
        self.jitter = patch_jitter

    def __call__(self, image: Tensor) -> Tensor:
        cell = min(image.shape[-2:]) // self.side
        patch = cell - self.jitter
        expect(patch >= 1, "an image", "larger sides", tuple(image.shape[-2:]))
        jitter = torch.randint(0, self.jitter, (2, self.side, self.side)).numpy()
        left, top = (jitter + cell * np.indices(jitter.shape[1:])).reshape(2, -1).tolist()
        return torch.stack([image[..., y : y + patch, x : x + patch] for x, y in zip(left, top)])

    def on_bytes(self, pixels: Tensor) -> Tensor:
        return self(pixels)


@register_transform("ShuffleImgPatches")
class ShuffleImgPatches(MakesLabel):
    """Put the patches into the order of a random permutation; its number is the label.

    After permutation p, the patch at place k is the one that was at p[k].
    """

    # It reads a file, or makes permutations for seconds: not to be made just to look.
    takes_long_to_make: ClassVar[bool] = True

    def __init__(self, perm_file: str = "", num_perms: int = 0, num_patches: int = 9) -> None:
        """
        perm_file: a .npy file with a permutation in each row, counted from 0 or from 1.
        num_perms: without a file, so many permutations of num_patches patches, always the same.
        num_patches: patches of an image; a file has its own number.
        """
        given = perm_file, num_perms
        expect(bool(perm_file) != bool(num_perms), "perm_file, num_perms", "either of them", given)
        self.permutations = (
            load_permutations(perm_file)
            if perm_file
            else distinct_permutations(num_perms, num_patches)
        )

    def __call__(self, patches: Tensor | Sequence[Tensor]) -> tuple[Tensor, int]:
        places = self.permutations.shape[1]
        expect(len(patches) == places, "num_patches", f"{places} patches", len(patches))
        label = int(np.random.randint(len(self.permutations)))  # noqa: NPY002
        return torch.stack([patches[place] for place in self.permutations[label]]), label

    def on_bytes(self, pixels: Tensor) -> tuple[Tensor, int]:
        return self(pixels)


@lru_cache(maxsize=4)
def distinct_permutations(count: int, pieces: int = 9, seed: int = 0) -> Permutations:
    """Return `count` permutations of `pieces` pieces, one in each row; not to be written to."""
    expect(2 <= pieces <= MOST_PIECES, "num_patches", f"2 to {MOST_PIECES} pieces", pieces)
    most = factorial(pieces)
    expect(1 <= count <= most, "num_perms", f"1 to {most}, all of {pieces} pieces", count)
    # The legacy generator's stream is frozen: the same on every machine.
    order = np.random.RandomState(seed).permutation(factorial(pieces))
    candidates = np.array(list(permutations(range(pieces))), np.int8)[order]
    chosen = candidates[_greedy(candidates, count)].astype(np.int64)
    chosen.setflags(write=False)
    return chosen


def _greedy(candidates: NDArray[np.int8], count: int) -> list[int]:
    """Return the rows to take, in order."""
    columns = np.ascontiguousarray(candidates.T)
    total = np.zeros(len(candidates), np.int64)
    least = np.full(len(candidates), len(columns), np.int64)
    taken = [0]
    while len(taken) < count:
        newest = candidates[taken[-1]]
        distance = sum((column != place).astype(np.int64) for column, place in zip(columns, newest))
        total += distance
        np.minimum(least, distance, out=least)
        # A row that is taken has a nearest at distance 0. Equals are in random order.
        taken.append(int(np.argmax(least * BEYOND_TOTAL + total)))
    return taken


def distances(permutations: Permutations) -> tuple[float, int]:
    """Return the number of places in which two permutations differ: the mean, and the least."""
    count, patches = permutations.shape
    nearest, total = patches, 0
    for number, each in enumerate(permutations[:-1], 1):
        different = (permutations[number:] != each).sum(1)
        nearest, total = min(nearest, int(different.min())), total + int(different.sum())
    pairs = count * (count - 1) // 2
    return total / max(1, pairs), nearest


def load_permutations(path: str) -> Permutations:
    """Return the permutations of a file, counted from 0."""
    missing = f"a file ({GENERATOR} makes one; an address is not downloaded), or num_perms"
    expect(Path(path).is_file(), "perm_file", missing, path)
    rows = np.load(path, allow_pickle=False)
    if rows.ndim == 2 and rows.dtype.kind in "iu" and rows.size and rows.min() in (0, 1):
        counted: Permutations = rows.astype(np.int64) - int(rows.min())
        if (np.sort(counted, axis=1) == np.arange(rows.shape[1])).all():
            return counted
    raise ValueError(f"perm_file: {path}: expected a permutation in each row, from 0 or 1.")
