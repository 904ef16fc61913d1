"""The weights of a colour's grey level, and the range of values, which several operations share."""

from __future__ import annotations

import numpy as np

# ITU-R 601 with 16 bits after the point. Sums stay below 2^24: float32 holds them exactly.
RED, GREEN, BLUE, ROUND = (np.float32(weight) for weight in (19595, 38470, 7471, 1 << 15))
FROM_16_BITS = np.float32(1 / (1 << 16))
ZERO, WHITE = np.float32(0), np.float32(255)
LEVELS = 256  # of a byte
