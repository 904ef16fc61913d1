"""Metrics of singular values and variances, against numpy and spectra that are known."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from sslengine.evaluate.label_free.geometry import self_cluster
from sslengine.evaluate.label_free.spectrum import (
    alpha_req,
    coherence,
    compute_rankme,
    effective_rank,
    feature_std,
    nesum,
    participation_ratio,
    rankme,
    stable_rank,
)

Array = NDArray[np.float64]


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def with_variances(variances: Array, rows: int, offset: float = 3.0) -> Tensor:
    """Features whose covariance has exactly these eigenvalues, around a point that is not 0."""
    draw, width = rng(), len(variances)
    centred = draw.normal(size=(rows, width))
    left = np.linalg.qr(centred - centred.mean(0))[0]  # its columns have the mean 0 too
    turn = np.linalg.qr(draw.normal(size=(width, width)))[0]
    return torch.from_numpy(left * np.sqrt(variances * (rows - 1)) @ turn.T + offset)


RANDOM = rng().normal(size=(60, 7)) @ rng(1).normal(size=(7, 12)) + 0.5  # of rank 8


def test_ranks_as_numpy_has_them() -> None:
    features = torch.from_numpy(RANDOM)
    s = np.linalg.svd(RANDOM, compute_uv=False)
    p = s / s.sum() + 1e-7
    assert rankme(features).value == pytest.approx(np.exp(-(p * np.log(p)).sum()), rel=1e-9)
    p = s[:8] / s.sum()
    assert effective_rank(features).value == pytest.approx(np.exp(-(p * np.log(p)).sum()), rel=1e-9)
    expected = np.linalg.norm(RANDOM) ** 2 / np.linalg.norm(RANDOM, 2) ** 2
    assert stable_rank(features).value == pytest.approx(expected, rel=1e-9)
    v = np.linalg.eigvalsh(np.cov(RANDOM.T))
    assert nesum(features).value == pytest.approx(v.sum() / v.max(), rel=1e-9)
    expected = v.sum() ** 2 / (v**2).sum()
    assert participation_ratio(features).value == pytest.approx(expected, rel=1e-9)


def test_the_hook_and_the_metric_are_one_rankme() -> None:
    features = torch.from_numpy(RANDOM)
    assert rankme(features).value == compute_rankme(features).item()


def test_of_orthonormal_features_and_of_a_cut() -> None:
    features = torch.eye(32).repeat(4, 1)
    for metric in (rankme, effective_rank, stable_rank):
        assert metric(features).value == pytest.approx(32, rel=1e-3)
        cut = features.clone()
        cut[:, 8:] = 0
        assert metric(cut).value == pytest.approx(8, rel=1e-3)
    flat = with_variances(np.ones(6), 50)
    assert nesum(flat).value == pytest.approx(6, rel=1e-9)
    assert participation_ratio(flat).value == pytest.approx(6, rel=1e-9)
    line = torch.linspace(1, 2, 50).unsqueeze(1) * torch.randn(1, 16)
    for metric in (rankme, effective_rank, stable_rank, nesum, participation_ratio):
        assert metric(line).value == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("alpha", [0.6, 1.0, 1.7])
@pytest.mark.parametrize(("width", "last"), [(150, 100), (64, 63)])
def test_an_exact_power_law_has_its_alpha(alpha: float, width: int, last: int) -> None:
    found = alpha_req(1e3 * with_variances(np.arange(1, width + 1.0) ** -alpha, 300))
    assert found.value == pytest.approx(alpha, rel=1e-8)
    assert found.details == {"r2": pytest.approx(1), "last": last}


def test_the_fit_of_alpha_is_weighted_and_of_variances() -> None:
    """Public copies fit singular values, without weights: about half as much."""
    variances = np.exp(-np.linspace(0, 9, 130))  # no power law, so weights matter
    found = alpha_req(with_variances(variances, 400))
    i = np.arange(11, 101)
    x, y = np.log(i), np.log(variances[10:100])
    weighted = -np.polyfit(x, y, 1, w=np.sqrt(1 / i))[0]
    assert found.value == pytest.approx(weighted, rel=1e-8)
    fitted = np.polyval(np.polyfit(x, y, 1, w=np.sqrt(1 / i)), x)
    expected = 1 - ((y - fitted) ** 2).sum() / ((y - y.mean()) ** 2).sum()
    assert found.details["r2"] == pytest.approx(expected, rel=1e-8)
    theirs = -np.polyfit(x, y / 2, 1)[0]
    assert found.value > 1.7 * theirs


def test_alpha_of_a_collapsed_spectrum_is_not_that_of_rounding() -> None:
    found = alpha_req(with_variances(np.r_[np.ones(15), np.zeros(135)], 300))
    assert not found.defined
    assert "there are 300 and 15" in found.why


def test_coherence() -> None:
    u = np.linalg.svd(RANDOM, full_matrices=False)[0][:, :8]
    expected = 60 / 8 * (u**2).sum(axis=1).max()
    assert coherence(torch.from_numpy(RANDOM)).value == pytest.approx(expected, rel=1e-9)
    assert coherence(torch.eye(8).repeat(5, 1)).value == pytest.approx(1, rel=1e-9)
    alone = torch.cat([torch.ones(40, 1), torch.zeros(40, 1)], dim=1)
    alone[7, 1] = 1
    assert coherence(alone).value == pytest.approx(40 / 2 * (1 + 1 / 40), rel=0.03)


def test_self_cluster() -> None:
    unit = RANDOM / np.linalg.norm(RANDOM, axis=1, keepdims=True)
    n, width = RANDOM.shape
    raw = ((unit @ unit.T) ** 2).sum()
    expected = (width * raw - n * (width + n - 1)) / ((width - 1) * (n - 1) * n)
    found = self_cluster(torch.from_numpy(RANDOM)).value
    assert found == pytest.approx(expected, rel=1e-9)
    # Without the square, or without unit length, as public copies have it.
    for wrong in (np.sqrt(raw), ((RANDOM @ RANDOM.T) ** 2).sum()):
        theirs = (width * wrong - n * (width + n - 1)) / ((width - 1) * (n - 1) * n)
        assert abs(found - theirs) > 0.1
    wide = torch.from_numpy(RANDOM.T.copy())  # fewer rows than dimensions
    unit = wide / wide.norm(dim=1, keepdim=True)
    raw = (unit @ unit.T).square().sum().item()
    assert self_cluster(wide).value == pytest.approx((raw - 14.2) / (144 - 14.2), rel=1e-9)


def test_a_row_without_direction_is_told() -> None:
    rows = torch.eye(4)
    rows[2] = 0
    assert self_cluster(rows).why == "1 rows are all zero, without a direction"


# ---- while a network is trained: papers' formulas written out, and known singular values


Measure = Callable[[Tensor], Tensor]
both = pytest.mark.parametrize("measure", [feature_std, compute_rankme])


@given(rows=st.integers(1, 9), dims=st.integers(1, 7), seed=st.integers(0, 10_000))
def test_written_out_and_never_above_the_ideal(rows: int, dims: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(rows, dims, generator=generator, dtype=torch.float64)
    unit = [[each / math.hypot(*row) for each in row] for row in features.tolist()]
    deviations = []
    for column in zip(*unit, strict=True):
        mean = math.fsum(column) / rows
        deviations.append(math.sqrt(math.fsum((each - mean) ** 2 for each in column) / rows))
    found = feature_std(features).item()
    assert found == pytest.approx(math.fsum(deviations) / dims, rel=1e-9, abs=1e-12)
    assert found <= 1 / math.sqrt(dims) + 1e-12


def test_collapsed_features_have_none() -> None:
    assert feature_std(torch.randn(1, 16).repeat(32, 1)).item() == pytest.approx(0.0, abs=1e-6)
    lengths = torch.linspace(0.5, 9, 32).unsqueeze(1)  # one direction, whatever the lengths
    assert feature_std(lengths * torch.randn(1, 16)).item() == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_features_that_are_not_finite_have_no_rank(bad: float) -> None:
    features = torch.ones(4, 3)
    features[2, 1] = bad
    assert math.isnan(compute_rankme(features).item())
