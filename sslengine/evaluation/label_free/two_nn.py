"""TwoNN (Facco et al., 2017): the dimension of the surface that features lie on.

With r_1 and r_2 the distances of a row to its two nearest others, the maximum likelihood estimate
N / sum log(r_2 / r_1). Rows that have an equal one (r_1 = 0) are left out; `left_out` counts them.
CLID takes a high dimension for good, IdEst a low one.
"""

from __future__ import annotations

from torch import Tensor

from sslengine.evaluation.label_free.metric import Undefined, register_metric
from sslengine.evaluation.neighbours import nearest

LEAST_ROWS = 10


@register_metric("two_nn")
def two_nn(features: Tensor) -> tuple[float, dict[str, float]]:
    if len(features) < LEAST_ROWS:
        raise Undefined(f"it needs {LEAST_ROWS} rows, there are {len(features)}")
    # By differences: what `nearest` compares is rounded.
    far = [(features - features[each]).norm(dim=1) for each in nearest(features, 2).T]
    first, second = far[0].minimum(far[1]), far[0].maximum(far[1])
    apart = first > 0
    used = int(apart.sum())
    if used < LEAST_ROWS:
        raise Undefined(f"only {used} rows have no equal one, it needs {LEAST_ROWS}")
    total = (second[apart] / first[apart]).log().sum()
    if not total:
        raise Undefined("the two nearest rows of each are equally far")
    return used / total.item(), {"left_out": float(len(features) - used)}
