"""IdEst (Mordacq et al., 2026): the dimension of features, by the length of spanning trees.

The minimum spanning tree of n rows has a length that grows as n^((d - 1) / d). The slope s of log
length over log n, for SIZES sizes from a tenth of the rows to all and DRAWS draws of each, gives
d = 1 / (1 - s). Its authors find that low values belong to good linear probes. Sizes and draws are
not theirs: values compare with each other, not with the paper's.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from sslengine.evaluation.label_free.metric import Undefined, register_metric
from sslengine.evaluation.label_free.spectrum import expect_different

if TYPE_CHECKING:
    from numpy.typing import NDArray

# All distances are in memory: 72 MB.
MOST_ROWS, LEAST_ROWS = 3_000, 100
SIZES, DRAWS = 8, 5


@register_metric("id_est", best="low")
def id_est(features: Tensor) -> tuple[float, dict[str, float]]:
    if len(features) < LEAST_ROWS:
        raise Undefined(f"it needs {LEAST_ROWS} rows, there are {len(features)}")
    draw = np.random.default_rng(0)
    if len(features) > MOST_ROWS:
        chosen = np.sort(draw.choice(len(features), MOST_ROWS, replace=False))
        features = features[torch.from_numpy(chosen).to(features.device)]
    expect_different(features)
    far = distances(features)
    rows = len(far)
    sizes = [round(each) for each in np.geomspace(rows / 10, rows, SIZES)]
    lengths = [_mean_length(far, size, draw) for size in sizes]
    if min(lengths) <= 0:
        raise Undefined("the rows of a sub-sample are all equal")
    slope = float(np.polyfit(np.log(sizes), np.log(lengths), 1)[0])
    if slope >= 1:
        raise Undefined(f"the lengths grow as n^{slope:.2f}; no dimension gives 1 or more")
    return 1 / (1 - slope), {"slope": slope, "rows": float(rows)}


def distances(features: Tensor) -> NDArray[np.float64]:
    """(N, N)."""
    centred = features - features.mean(dim=0)
    found: NDArray[np.float64] = torch.cdist(centred, centred).cpu().numpy()
    np.fill_diagonal(found, 0.0)
    return found


def tree_length(far: NDArray[np.float64]) -> float:
    """Prim's algorithm on a full matrix; an edge of length 0 is an edge."""
    total, new = 0.0, 0
    left, inside = np.full(len(far), math.inf), np.zeros(len(far))  # inside: infinity, else 0
    for _ in range(len(far) - 1):
        left[new] = inside[new] = math.inf
        np.minimum(left, far[new] + inside, out=left)
        new = int(left.argmin())
        total += float(left[new])
    return total


def _mean_length(far: NDArray[np.float64], size: int, draw: np.random.Generator) -> float:
    if size == len(far):  # every draw has all rows
        return tree_length(far)
    chosen = (draw.choice(len(far), size, replace=False) for _ in range(DRAWS))
    return float(np.mean([tree_length(far[each][:, each]) for each in chosen]))
