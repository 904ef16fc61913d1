"""An argument that is the least and greatest value of something."""

from __future__ import annotations

import math
from collections.abc import Sequence


def in_order(
    key: str, ends: Sequence[float], most: float = math.inf, with_zero: bool = False
) -> tuple[float, float]:
    """Both ends. ValueError unless they are two, in order, above 0 (or 0), not above `most`."""
    low, high = ends if len(ends) == 2 else (math.nan, math.nan)
    if not ((low > 0 or (with_zero and low == 0)) and low <= high <= most):
        bounds = "from 0" if with_zero else "above 0"
        if most < math.inf:
            bounds += f" to {most:g}"
        raise ValueError(f"{key}: expected two numbers {bounds}, in order, got {list(ends)}.")
    return low, high
