from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sslengine.errors import DataError
from sslengine.evaluation.feature_std import feature_std


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


def test_directions_all_around_give_the_ideal() -> None:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(20_000, 64, generator=generator)
    assert feature_std(features).item() == pytest.approx(1 / 8, rel=1e-2)
    axes = torch.cat([torch.eye(16), -torch.eye(16)])
    assert feature_std(axes).item() == pytest.approx(1 / 4, rel=1e-6)


def test_half_precision_is_computed_in_single() -> None:
    features = torch.randn(40, 8).half()
    assert torch.equal(feature_std(features), feature_std(features.float()))


def test_no_graph_is_kept() -> None:
    assert not feature_std(torch.randn(4, 3, requires_grad=True)).requires_grad


@pytest.mark.parametrize("shape", [(4,), (2, 3, 4), (0, 4), (4, 0)])
def test_anything_but_a_matrix_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(DataError, match=r"expected a matrix \(N, D\)"):
        feature_std(torch.zeros(shape))
