"""kNN and the linear probe where images show several classes, against scikit-learn."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score
from sklearn.multiclass import OneVsRestClassifier
from sklearn.neighbors import KNeighborsRegressor
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from sslengine.errors import DataError
from sslengine.evaluate.features import SEVERAL
from sslengine.evaluate.few_shot import few_labels, few_shot_knn, few_shot_logistic
from sslengine.evaluate.knn import knn_scores
from sslengine.evaluate.linear import linear_probe, mean_average_precision
from sslengine.evaluate.options import LinearProbeOptions
from sslengine.evaluate.outcome import Outcome
from sslengine.meters.mean_ap import average_precision


def noisy(count: int, seed: int) -> tuple[Tensor, Tensor]:
    draw = np.random.default_rng(seed)
    rows = (draw.random((count, 4)) < 0.4).astype(np.int8)
    mixing = np.random.default_rng(7).normal(size=(4, 12))
    features = rows @ mixing + 1.5 * draw.normal(size=(count, 12))
    return torch.from_numpy(features), torch.from_numpy(rows)


(TRAIN, ROWS), (TEST, WANTED) = noisy(150, 0), noisy(300, 1)


def test_votes_as_scikit_learn_counts_them() -> None:
    nearest = KNeighborsRegressor(n_neighbors=7, algorithm="brute").fit(TRAIN, ROWS)
    found = knn_scores(TRAIN, ROWS, TEST, [7], sigma=None, metric="euclid")[7]
    np.testing.assert_allclose(found, nearest.predict(TEST), atol=1e-12)


def test_weights_and_what_is_not_known() -> None:
    """As of single classes, a share of all votes; without the votes of those who do not know."""
    labels = torch.arange(150) % 4
    single = torch.nn.functional.one_hot(labels, 4)
    votes = knn_scores(TRAIN, labels, TEST, [9])[9]
    shares = votes / votes.sum(dim=1, keepdim=True)
    torch.testing.assert_close(knn_scores(TRAIN, single, TEST, [9])[9], shares)
    rows = single.clone()
    rows[labels == 3, 0] = -1
    of = votes.sum(dim=1) - votes[:, 3]
    torch.testing.assert_close(knn_scores(TRAIN, rows, TEST, [9])[9][:, 0], votes[:, 0] / of)
    assert knn_scores(TRAIN, torch.full_like(rows, -1), TEST, [9])[9].eq(0).all()


def test_the_probe_is_a_regression_for_each_class() -> None:
    scale = StandardScaler().fit(TRAIN)
    for penalty in (1.0, 0.01):
        single = LogisticRegression(C=1 / (penalty * len(TRAIN)), max_iter=1000)
        probe = OneVsRestClassifier(single).fit(scale.transform(TRAIN), ROWS.numpy())
        scores = probe.decision_function(scale.transform(TEST))
        options = LinearProbeOptions(PENALTIES=[penalty])
        found = linear_probe(TRAIN, ROWS, TEST, WANTED, options)
        expected = mean_average_precision(torch.from_numpy(scores), WANTED)
        assert found.test_accuracy == pytest.approx(expected, abs=0.05)
        costs = LinearProbeOptions(PENALTIES=[penalty * len(TRAIN)], PENALTY_ON="sum")
        assert linear_probe(TRAIN, ROWS, TEST, WANTED, costs).test_accuracy == (
            pytest.approx(expected, abs=0.05)
        )
        plain = average_precision(torch.from_numpy(scores), WANTED, interpolated=False).mean()
        assert plain == pytest.approx(average_precision_score(WANTED, scores), rel=1e-12)


def test_a_penalty_is_chosen_and_odd_classes_are_left_out() -> None:
    rows = torch.cat([ROWS, torch.zeros(150, 1, dtype=torch.int8)], dim=1)
    rows[::3, 0] = -1
    wanted = torch.cat([WANTED, WANTED[:, :1]], dim=1)
    found = linear_probe(TRAIN, rows, TEST, wanted)
    assert found.penalty in LinearProbeOptions().PENALTIES
    assert found.notes[0] == "1 of 5 classes have no images of both kinds"
    assert 60 < found.test_accuracy < 100
    again = linear_probe(TRAIN, rows, TEST, wanted)
    assert again.test_accuracy == found.test_accuracy
    assert found.chosen_on == "30 of 150 training images"
    best = linear_probe(TRAIN, rows, TEST, wanted, LinearProbeOptions(CHOOSE_ON="test"))
    assert best.chosen_on == "the test images"
    assert best.test_accuracy == pytest.approx(best.held_out_accuracy, abs=0.05)
    assert best.test_accuracy > found.test_accuracy - 0.05


ONE_CLASS_EACH = (few_shot_knn, few_shot_logistic, few_labels)


@pytest.mark.parametrize("compute", ONE_CLASS_EACH, ids=lambda each: each.__name__)
def test_protocols_that_are_not_for_them_say_so(compute: Callable[..., Outcome]) -> None:
    found = compute(TRAIN, ROWS, TEST, WANTED)
    assert not found.metrics
    (note,) = found.notes
    assert note.endswith(f": {SEVERAL}")


def test_groups_are_held_out_whole() -> None:
    """As scikit-learn's regressions choose on the rows of these groups."""
    groups = torch.arange(150) // 10
    found = linear_probe(TRAIN, ROWS, TEST, WANTED, groups=groups)
    assert found.chosen_on == "30 of 150 training images in whole groups"
    with pytest.raises(DataError, match="GROUP_COLUMN: all training images have the same value"):
        linear_probe(TRAIN, ROWS, TEST, WANTED, groups=torch.zeros(150))
