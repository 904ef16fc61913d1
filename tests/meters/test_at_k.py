from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from sslengine.errors import TrainingError
from sslengine.meters.top_k import AccuracyListMeter, PrecisionAtKListMeter, RecallAtKListMeter

OUTPUT = torch.tensor([[0.06, 0.41, 0.04, 0.39, 0.1], [0.9, 0.0, 0.3, 0.2, 0.1]])
SHOWN = torch.tensor([[0, 1, 0, 1, 0], [0, 0, 1, 0, 1]])


def _by_hand(output: Tensor, shown: Tensor, k: int) -> tuple[int, int]:
    """Right guesses of the k best, and classes shown."""
    best = np.argsort(-output.numpy(), axis=1)[:, :k]
    right = sum(int(shown[row, each]) for row, every in enumerate(best) for each in every)
    return right, int(shown.sum())


@pytest.mark.parametrize("k", [1, 2, 3])
def test_shares_of_the_guesses_and_of_what_is_shown(k: int) -> None:
    right, shown = _by_hand(OUTPUT, SHOWN, k)
    for meter, of in ((PrecisionAtKListMeter, 2 * k), (RecallAtKListMeter, shown)):
        made = meter(topk_values=[k])
        for row in range(2):
            made.update(OUTPUT[row : row + 1], SHOWN[row : row + 1])
        assert made.value() == {f"top_{k}": {"0": pytest.approx(100 * right / of)}}


def test_what_is_not_known_is_no_guess() -> None:
    meter = PrecisionAtKListMeter(topk_values=[2])
    meter.update(OUTPUT, torch.tensor([[0, -1, 0, 1, 0], [-1, -1, -1, -1, -1]]))
    assert meter.value() == {"top_2": {"0": 100.0}}  # of classes 1 and 3 the second is known
    meter.reset()
    meter.update(OUTPUT, torch.full((2, 5), -1))
    assert meter.value() == {"top_2": {}}


def test_class_numbers_are_one_class_each() -> None:
    meter = RecallAtKListMeter(topk_values=[1, 2])
    meter.update(OUTPUT, torch.tensor([3, 0]))
    assert meter.value() == {"top_1": {"0": 50.0}, "top_2": {"0": 100.0}}


def test_more_guesses_than_classes() -> None:
    with pytest.raises(TrainingError, match="recall_at_k_list_meter.topk_values: top 6 of 5"):
        RecallAtKListMeter(topk_values=[6]).update(OUTPUT, SHOWN)


def test_accuracy_takes_any_class_that_is_shown() -> None:
    meter = AccuracyListMeter(topk_values=[1, 2])
    meter.update(OUTPUT, SHOWN)
    assert meter.value() == {"top_1": {"0": 50.0}, "top_2": {"0": 100.0}}
    meter.reset()
    meter.update(OUTPUT, torch.tensor([[0, 1, 0, 0, 0], [0, 0, -1, 0, 0]]))
    assert meter.value() == {"top_1": {"0": 100.0}, "top_2": {"0": 100.0}}
