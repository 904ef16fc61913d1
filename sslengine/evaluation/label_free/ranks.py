"""How many dimensions features fill, by their singular values s or variances v.

rankme               Garrido et al., 2023: exp(entropy of s / sum s + 1e-7), features not centred
effective_rank       Roy and Vetterli, 2007: the same without 1e-7
stable_rank          sum s^2 / s_1^2, features not centred (Tsitsulin et al., 2023)
participation_ratio  (sum v)^2 / sum v^2, of the covariance
nesum                He and Ozay, 2022: sum v / v_1, of the covariance; 0 where v_1 is 0

All are between 1 and min(N, D), and grow with N.
"""

from __future__ import annotations

from torch import Tensor

from sslengine.evaluation.label_free.metric import Undefined, register_metric
from sslengine.evaluation.label_free.spectrum import (
    RANKME_EPS,
    exp_entropy,
    singular_values,
    variances,
)


@register_metric("rankme", best="high")
def rankme(features: Tensor) -> float:
    return exp_entropy(singular_values(features), RANKME_EPS).item()


@register_metric("effective_rank", best="high")
def effective_rank(features: Tensor) -> float:
    return exp_entropy(_not_all_zero(singular_values(features))).item()


@register_metric("stable_rank", best="high")
def stable_rank(features: Tensor) -> float:
    values = _not_all_zero(singular_values(features))
    return (values / values[0]).square().sum().item()


@register_metric("participation_ratio", best="high")
def participation_ratio(features: Tensor) -> float:
    found = variances(features)
    if not found[0]:
        raise Undefined("all images have the same features")
    shares = found / found[0]
    return (shares.sum().square() / shares.square().sum()).item()


@register_metric("nesum", best="high")
def nesum(features: Tensor) -> float:
    found = variances(features)
    return (found / found[0]).sum().item() if found[0] else 0.0


def _not_all_zero(values: Tensor) -> Tensor:
    if not values[0]:
        raise Undefined("all features are zero")
    return values
