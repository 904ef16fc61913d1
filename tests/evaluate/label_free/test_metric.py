"""What holds for every metric: no exception for hopeless features, rows, and one of a user's own."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import pytest
import torch
from torch import Tensor

from sslengine import catalog  # noqa: F401 - declares the metrics
from sslengine.evaluate.label_free import metric as module
from sslengine.evaluate.label_free.metric import (
    Inputs,
    Measured,
    Undefined,
    goodness,
    measure,
    metric,
    register_metric,
)
from sslengine.evaluate.label_free.spectrum import rankme
from sslengine.registry import LABEL_FREE
from tests.registries import as_before

NAMES = LABEL_FREE.names()
every = pytest.mark.parametrize("name", NAMES)


@pytest.fixture
def no_traces() -> Iterator[None]:
    with as_before(LABEL_FREE):
        yield


def of(name: str, rows: Tensor) -> Measured:
    """The metric of rows (N, 3, D): as views, or the first view of each as features."""
    found = metric(name)
    return found(
        *(rows if need in ("views", "projections") else rows[:, 0] for need in found.needs)
    )


# What is defined although all features are equal: one dimension, one cluster, no distance.
OF_EQUAL = {
    "rankme": 1, "effective_rank": 1, "stable_rank": 1, "nesum": 0, "coherence": 1,
    "self_cluster": 1, "uniformity": 0, "alignment": 0,
}  # fmt: skip


@every
def test_of_constant_features(name: str) -> None:
    row = torch.randn(24, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = of(name, row.expand(150, 3, -1))
    if name in OF_EQUAL:
        assert found.value == pytest.approx(OF_EQUAL[name], abs=1e-4)
    else:
        assert math.isnan(found.value)
        assert found.why


@every
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_values_that_are_not_finite(name: str, bad: float) -> None:
    rows = torch.randn(150, 3, 24, generator=torch.Generator().manual_seed(0))
    rows[3, 0, 5] = bad
    found = of(name, rows)
    assert math.isnan(found.value)
    assert "NaN or infinite" in found.why
    assert found.n == 150


def test_what_needs_more_rows_says_how_many() -> None:
    few = torch.randn(3, 3, 24)
    why = {name: of(name, few).why for name in NAMES}
    assert "100 rows" in why["id_est"]
    assert "more than 100 rows" in why["alpha_req"]
    assert "10 rows" in why["two_nn"]
    assert "4 rows" in why["clid"]
    assert "more than 11 images" in of("view_consistency", torch.randn(11, 3, 24)).why
    assert of("view_consistency", torch.randn(12, 3, 24)).defined


@every
@pytest.mark.parametrize("factor", [1e-3, 1e4])
def test_scale_does_not_matter(name: str, factor: float) -> None:
    rows = torch.randn(130, 3, 24, generator=torch.Generator().manual_seed(0)).double()
    # LiDAR's delta is absolute: within-class variances have to be above it.
    expected = pytest.approx(of(name, rows).value, rel=1e-2 if name == "lidar" else 1e-6, abs=1e-9)
    if name != "lidar" or factor > 1:
        assert of(name, factor * rows).value == expected


def test_rows_are_the_same_sub_sample_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROWS", 50)
    features = torch.randn(200, 8, generator=torch.Generator().manual_seed(0))
    first, again = rankme(features), rankme(features.clone())
    assert first == again
    assert first.n == 50
    draw = torch.Generator().manual_seed(0)
    chosen = torch.randperm(200, generator=draw)[:50].sort().values
    assert first == rankme(features[chosen])


def test_a_changed_tensor_is_computed_again() -> None:
    features = torch.randn(50, 8).double()
    before = rankme(features).value
    features[:, 4:] = 0
    assert rankme(features).value < 4.01 < before
    with torch.inference_mode():
        assert rankme(torch.eye(5).double()).value == pytest.approx(5, rel=1e-4)


def test_a_metric_of_ones_own(no_traces: None) -> None:
    @register_metric("mean_norm", best="high")
    def mean_norm(features: Tensor) -> float:
        if len(features) > 4:
            raise Undefined("too many for me")
        return features.norm(dim=1).mean().item()

    @register_metric("broken")
    def broken(views: Tensor) -> float:
        raise ValueError("a bug")

    found = measure(Inputs(2 * torch.eye(4), views=torch.zeros(3, 2, 4)), ["mean_norm", "broken"])
    assert found["mean_norm"] == Measured(2.0, 4)
    assert math.isnan(found["broken"].value)
    assert found["broken"].why == "ValueError: a bug"
    assert mean_norm(torch.eye(5)).why == "too many for me"
    endless = mean_norm(torch.full((2, 9), 1e308, dtype=torch.float64))
    assert math.isnan(endless.value)
    assert endless.why == "the result is inf"
    assert {*measure(Inputs(torch.eye(4)))} == {*NAMES, "mean_norm", "broken"}


def test_a_metric_of_ones_own_may_change_its_argument_in_place(no_traces: None) -> None:
    @register_metric("emptied")
    def emptied(features: Tensor) -> float:
        return features.zero_().sum().item()

    features = torch.randn(20, 4, dtype=torch.float64)
    before = features.clone()
    found = measure(Inputs(features), ["emptied", "rankme"])
    assert found["emptied"].value == 0
    assert found["rankme"] == rankme(before)
    assert features.equal(before)


def test_goodness_orders_as_the_authors_do() -> None:
    good = {name: partial(goodness, metric(name).best) for name in NAMES}
    assert good["alpha_req"](1.1) > good["alpha_req"](0.7)
    assert good["id_est"](3) > good["id_est"](4)
    assert good["rankme"](4) > good["rankme"](3)
    assert metric("two_nn").best is None
