"""The difference of two scores on the same images, and its 95 % interval. Needs numpy alone."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

NORMAL = 1.959964  # of 95 %


def compare_pairs(own: Any, other: Any) -> tuple[float, float, float]:
    """Return the difference in percent, and the ends of its interval.

    own, other: of each image whether the answer is right, or how often over several networks.
    Agresti and Min's interval: half an image more for each way in which two answers can be right.
    """
    each = np.asarray(own, np.float64) - np.asarray(other, np.float64)
    count, total = len(each) + 2, float(each.sum())
    variance = (float(np.square(each).sum()) + 1 - total**2 / count) / count**2
    half, middle = NORMAL * math.sqrt(max(0.0, variance)), total / count
    return 100 * total / len(each), 100 * (middle - half), 100 * (middle + half)
