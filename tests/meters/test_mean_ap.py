from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score, precision_recall_curve
from torch import Tensor

from sslengine.distributed.ranks import rank
from sslengine.meters import mean_ap as module
from sslengine.meters.mean_ap import MeanAPListMeter, average_precision
from tests.ranks import RankPool


def _data(images: int = 60, classes: int = 9, ties: bool = True) -> tuple[Tensor, Tensor]:
    """Class 3 has no image, class 4 is in all; some entries are not known."""
    draw = torch.Generator().manual_seed(0)
    scores = torch.randn(images, classes, generator=draw)
    scores = scores.mul(3).round() if ties else scores
    targets = (torch.rand(images, classes, generator=draw) < 0.3).to(torch.int8)
    targets[torch.rand(images, classes, generator=draw) < 0.2] = -1
    targets[:, 3], targets[:, 4] = 0, 1
    return scores, targets


def _sklearn(scores: Tensor, targets: Tensor, interpolated: bool) -> list[float]:
    found = []
    for column, wanted in zip(scores.T.numpy(), targets.T.numpy(), strict=True):
        known = wanted >= 0
        if not (wanted > 0).any():
            found.append(float("nan"))
        elif interpolated:
            precision, recall, _ = precision_recall_curve(wanted[known] > 0, column[known])
            best = np.maximum.accumulate(precision)[:-1]  # the first is of the lowest score
            found.append(float((-np.diff(recall) * best).sum()))
        else:
            found.append(average_precision_score(wanted[known] > 0, column[known]))
    return found


@pytest.mark.parametrize("interpolated", [False, True])
@pytest.mark.parametrize("ties", [False, True])
def test_equals_scikit_learn(ties: bool, interpolated: bool, monkeypatch: Any) -> None:
    scores, targets = _data(ties=ties)
    expected = _sklearn(scores, targets, interpolated)
    for piece in (module.BLOCK, 100):  # some classes at a time
        monkeypatch.setattr(module, "BLOCK", piece)
        found = average_precision(scores, targets, interpolated)
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12)


def test_scores_that_are_no_numbers_and_no_images() -> None:
    scores, targets = _data()
    scores[0, 0] = float("nan")
    assert average_precision(scores, targets).isnan().nonzero().flatten().tolist() == [0, 3]
    assert average_precision(scores[:0], targets[:0]).isnan().all()


def _mean(scores: Tensor, targets: Tensor, interpolated: bool = True) -> float:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return 100 * float(np.nanmean(_sklearn(scores, targets, interpolated)))


def test_over_uneven_batches_and_several_outputs() -> None:
    scores, targets = _data()
    meter = MeanAPListMeter(meter_names=["one", "other"], interpolated=False)
    assert meter.value() == {}
    for part in (slice(0, 32), slice(32, 60)):
        meter.update([scores[part], -scores[part]], targets[part])
    value = meter.value()
    assert value["mAP"]["one"] == pytest.approx(_mean(scores, targets, False))
    assert value["mAP"]["other"] == pytest.approx(_mean(-scores, targets, False))
    assert sorted(value["AP"]["one"]) == ["0", "1", "2", "4", "5", "6", "7", "8"]
    assert value["AP"]["one"]["4"] == pytest.approx(100.0)
    meter.reset()
    assert meter.value() == {}
    meter.update([scores, scores], torch.zeros(60, 9))
    assert meter.value() == {"mAP": {}, "AP": {"one": {}, "other": {}}}


def test_one_class_an_image_and_mixed_labels() -> None:
    scores, _ = _data()
    numbers = torch.arange(60) % 9
    rows = torch.nn.functional.one_hot(numbers, 9).to(torch.int8)
    numbers[0], rows[0] = -1, -1  # of which the class is not known
    for target in (numbers, torch.where(rows > 0, 0.7, rows * 1.0)):
        meter = MeanAPListMeter()
        meter.update(scores, target)
        assert meter.value()["mAP"]["0"] == pytest.approx(_mean(scores, rows))


def test_state_goes_round() -> None:
    scores, targets = _data()
    one, two = MeanAPListMeter(), MeanAPListMeter()
    one.update(scores[:20], targets[:20])
    two.load_state_dict(one.state_dict())
    for each in (one, two):
        each.update(scores[20:], targets[20:])
    assert one.value() == two.value()
    half = MeanAPListMeter()
    half.update(scores[:20], targets[:20])
    rest = MeanAPListMeter()
    rest.update(scores[20:], targets[20:])
    two.load_sum([half.state_dict(), rest.state_dict()])
    assert two.value() == one.value()


def _share() -> dict[str, Any]:
    scores, targets = _data()
    part = slice(0, 11) if rank() == 0 else slice(11, 60)
    meter = MeanAPListMeter(num_meters=2)
    meter.update([scores[part], scores[part]], targets[part])
    return meter.value()


def test_two_ranks_are_one(two_ranks: RankPool) -> None:
    scores, targets = _data()
    for value in two_ranks.run(_share):
        assert value["mAP"]["1"] == pytest.approx(_mean(scores, targets), rel=1e-12)
