"""Permutations that are easy to tell apart, for jigsaw puzzles.

One is taken at random, and then from all there are, again and again, the one that differs
in the most places from those taken so far. In "Unsupervised Learning of Visual
Representations by Solving Jigsaw Puzzles" (Noroozi and Favaro, 2016) the average over those
decides; but it is equal for many, some of which differ from one of them in two places
alone. So the nearest decides first, which does not change the average.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import permutations
from math import factorial

import numpy as np
from numpy.typing import NDArray

# All permutations are tried: with ten pieces there would be millions.
MOST_PIECES = 9

# More than the distances from all that are taken can sum up to.
BEYOND_TOTAL = 1 << 40

Permutations = NDArray[np.int64]


@lru_cache(maxsize=4)
def distinct_permutations(count: int, pieces: int = 9, seed: int = 0) -> Permutations:
    """`count` permutations of `pieces` pieces, one in each row; not to be written to."""
    if not 2 <= pieces <= MOST_PIECES:
        raise ValueError(f"expected 2 to {MOST_PIECES} pieces, got {pieces}.")
    if not 1 <= count <= factorial(pieces):
        raise ValueError(
            f"{pieces} pieces have {factorial(pieces)} permutations; asked for {count}."
        )
    # The legacy generator's stream is frozen: the same on every machine.
    order = np.random.RandomState(seed).permutation(factorial(pieces))
    candidates = np.array(list(permutations(range(pieces))), np.int8)[order]
    chosen = candidates[_greedy(candidates, count)].astype(np.int64)
    chosen.setflags(write=False)
    return chosen


def _greedy(candidates: NDArray[np.int8], count: int) -> list[int]:
    """The rows to take, in order."""
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
    """The number of places in which two permutations differ: the mean, and the least."""
    count, patches = permutations.shape
    nearest, total = patches, 0
    for number, each in enumerate(permutations[:-1], 1):
        different = (permutations[number:] != each).sum(1)
        nearest, total = min(nearest, int(different.min())), total + int(different.sum())
    pairs = count * (count - 1) // 2
    return total / max(1, pairs), nearest
