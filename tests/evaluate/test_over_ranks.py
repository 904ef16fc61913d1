"""Protocols whose work ranks share: the same results as on one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from sslengine.engines.scoring import Asked, Sets
from sslengine.evaluate.features import Rows
from sslengine.evaluate.knn import knn_curve, knn_scores
from sslengine.evaluate.linear import linear_probe, mean_average_precision
from sslengine.evaluate.logistic import Samples, fit, standardisation
from sslengine.evaluate.options import (
    EvaluateOptions,
    LinearProbeOptions,
    NearestNeighborOptions,
    SvmOptions,
)
from sslengine.evaluate.store import Store


def noisy() -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(0)
    labels = torch.randint(5, (150,), generator=draw)
    centres = torch.randn(5, 12, generator=draw, dtype=torch.float64)
    noise = torch.randn(150, 12, generator=draw, dtype=torch.float64)
    return centres[labels] + 1.5 * noise, labels


def _stored(folder: Path) -> tuple[Rows, Tensor, Tensor, Tensor]:
    features, labels = noisy()
    return Store.read(folder).layer("f"), labels, features[:37], labels[:37].flip(0)


def _judged(folder: Path, over_ranks: bool, rows: int = 37) -> dict[str, Any]:
    """On features that a store has."""
    train, labels, test, wanted = _stored(folder)
    sets = train, labels, test[0:rows], wanted[:rows]
    seen = torch.nn.functional.one_hot(labels)
    scores = knn_scores(train, seen, sets[2], [3, 9], over_ranks=over_ranks)
    probe = linear_probe(*sets, LinearProbeOptions(), over_ranks=over_ranks)
    scale = standardisation(train, rows=7, over_ranks=over_ranks)
    samples = Samples(train, labels, 5, scale, over_ranks=over_ranks)
    fitted = fit(samples, [0.1, 0.001], tolerance=1e-9).classifiers
    return {
        "knn": knn_curve(*sets, [1, 9], over_ranks=over_ranks, top=(1, 2)),
        "mAP": {k: mean_average_precision(each, seen[:rows]) for k, each in scores.items()},
        "linear of many": linear_probe(
            train, seen, sets[2], seen[:rows], over_ranks=over_ranks
        ).test_accuracy,
        "linear": (probe.test_accuracy, probe.held_out_accuracy, probe.penalty),
        "weights": [each.weight for each in fitted],
        "read": samples._own,
    }


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    features, labels = noisy()
    store = Store.make(tmp_path, {}, 150)
    for shard in store.missing():
        rows = torch.tensor(shard.images)
        store.write(shard, {"f": features[rows]}, labels[rows], rows)
    return tmp_path


def _among_themselves(rows: int) -> tuple[dict[int, float], dict[int, float], list[str]]:
    features, labels = noisy()
    neighbours = NearestNeighborOptions(TOPK=[1, 5, 200])
    asked = Asked(EvaluateOptions(), neighbours, LinearProbeOptions(), SvmOptions())
    notes: list[str] = []
    sets = [Sets("some", "f", features[:rows], labels[:rows])]
    (score,) = asked.score_labels(sets, notes.append, lambda _: None)
    return score.knn, score.knn_top5, notes


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 4])
def test_ranks_share_images_that_are_classified_by_the_others(
    count: int, request: pytest.FixtureRequest
) -> None:
    pool = request.getfixturevalue({2: "two_ranks", 4: "four_ranks"}[count])
    for rows in (3, 150):
        one = _among_themselves(rows)
        assert len({*one[0].values()}) > 1 or rows == 3
        assert any(f"only {rows - 1} training images" in each for each in one[2])
        assert pool.run(_among_themselves, rows) == [one] * count


@pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_ranks_share_neighbours_and_regression(
    count: int, stored: Path, request: pytest.FixtureRequest
) -> None:
    """Each reads its own rows; 3 queries are fewer than 4 ranks."""
    pool = request.getfixturevalue({2: "two_ranks", 4: "four_ranks"}[count])
    for rows in (3, 37):
        one = _judged(stored, over_ranks=False, rows=rows)
        every = pool.run(_judged, stored, True, rows)
        assert [len(each["read"]) for each in every] == {2: [75, 75], 4: [37, 38, 37, 38]}[count]
        for each in every:
            for name in ("knn", "linear"):
                assert each[name] == one[name]
            assert each["linear of many"] == pytest.approx(one["linear of many"], rel=1e-9)
            assert each["mAP"] == pytest.approx(one["mAP"], rel=1e-6)
            torch.testing.assert_close(each["weights"], one["weights"], rtol=1e-6, atol=1e-8)
