"""Against the papers' formulas, written out and with singular values that are known."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from sslengine.errors import DataError
from sslengine.evaluate.label_free.spectrum import compute_rankme as rankme
from sslengine.evaluate.label_free.spectrum import feature_std

Measure = Callable[[Tensor], Tensor]
both = pytest.mark.parametrize("measure", [feature_std, rankme])


@both
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_single(measure: Measure, dtype: torch.dtype) -> None:
    features = torch.randn(40, 8).to(dtype)
    assert torch.equal(measure(features), measure(features.float()))


@both
def test_no_graph_is_kept(measure: Measure) -> None:
    assert not measure(torch.randn(4, 3, requires_grad=True)).requires_grad


@both
@pytest.mark.parametrize("shape", [(4,), (2, 3, 4), (0, 4), (4, 0)])
def test_anything_but_a_matrix_is_refused(measure: Measure, shape: tuple[int, ...]) -> None:
    with pytest.raises(DataError, match=r"expected a matrix of features \(N, D\)"):
        measure(torch.zeros(shape))


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


def with_singular_values(values: list[float], rows: int, columns: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)

    def orthonormal(size: int) -> Tensor:
        square = torch.randn(size, size, generator=generator, dtype=torch.float64)
        return torch.linalg.qr(square).Q[:, : len(values)]

    diagonal = torch.tensor(values, dtype=torch.float64)
    return orthonormal(rows) * diagonal @ orthonormal(columns).T


@given(
    values=st.lists(st.floats(0.01, 100.0), min_size=1, max_size=6),
    more_rows=st.integers(0, 5),
    more_columns=st.integers(0, 5),
    seed=st.integers(0, 1000),
)
def test_the_papers_formula(
    values: list[float], more_rows: int, more_columns: int, seed: int
) -> None:
    rows, columns = len(values) + more_rows, len(values) + more_columns
    shares = [v / math.fsum(values) + 1e-7 for v in values]
    shares += [1e-7] * (min(rows, columns) - len(values))  # singular values that are 0
    expected = math.exp(-math.fsum(p * math.log(p) for p in shares))
    found = rankme(with_singular_values(values, rows, columns, seed))
    assert found.item() == pytest.approx(expected, rel=1e-8)


def test_from_one_line_to_all_dimensions() -> None:
    line = torch.linspace(1, 2, 50).unsqueeze(1) * torch.randn(1, 16)
    assert rankme(line).item() == pytest.approx(1.0, abs=1e-3)
    assert rankme(torch.eye(16).repeat(4, 1)).item() == pytest.approx(16.0, abs=1e-3)


def test_scale_does_not_matter() -> None:
    features = torch.randn(40, 8)
    assert rankme(1e-6 * features).item() == pytest.approx(rankme(features).item(), rel=1e-5)


def test_features_that_are_all_zero_have_the_rank_of_a_point() -> None:
    assert rankme(torch.zeros(10, 4)).item() == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_features_that_are_not_finite_have_no_rank(bad: float) -> None:
    features = torch.ones(4, 3)
    features[2, 1] = bad
    assert math.isnan(rankme(features).item())
