from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import top_k_accuracy_score
from torch import Tensor

from sslengine.distributed.ranks import rank
from sslengine.meters.base import Meter
from sslengine.meters.top_k import AccuracyListMeter, PrecisionAtKListMeter, RecallAtKListMeter
from tests.ranks import RankPool


def _data(seed: int = 0, rows: int = 50, classes: int = 7) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    target = torch.randint(classes, (rows,), generator=generator)
    target[:classes] = torch.arange(classes)
    return torch.randn(rows, classes, generator=generator), target


def _sklearn(logits: Tensor, target: Tensor, k: int) -> float:
    labels = np.arange(logits.shape[1])
    return 100 * top_k_accuracy_score(target.numpy(), logits.numpy(), k=k, labels=labels)


def test_equals_scikit_learn_over_uneven_batches() -> None:
    logits, target = _data()
    meter = AccuracyListMeter(topk_values=[1, 3, 5])
    for part in (slice(0, 32), slice(32, 50)):
        meter.update(logits[part], target[part])
    value = meter.value()
    for k in (1, 3, 5):
        assert value[f"top_{k}"]["0"] == pytest.approx(_sklearn(logits, target, k))


def test_soft_labels_count_by_their_heaviest_class() -> None:
    meter = AccuracyListMeter()
    meter.update(torch.tensor([[0.0, 1.0], [1.0, 0.0]]), torch.tensor([[0.3, 0.7], [0.4, 0.6]]))
    assert meter.value() == {"top_1": {"0": 50.0}}


def test_images_without_a_class_are_not_counted() -> None:
    logits, target = _data()
    known = torch.arange(50) % 4 != 0
    meter = AccuracyListMeter(topk_values=[1, 3])
    meter.update(logits, torch.where(known, target, -1))
    value = meter.value()
    for k in (1, 3):
        assert value[f"top_{k}"]["0"] == pytest.approx(_sklearn(logits[known], target[known], k))
    meter.reset()
    meter.update(logits, torch.full_like(target, -100))
    assert meter.value() == {"top_1": {}, "top_3": {}}


def test_state_goes_round_and_reset_forgets() -> None:
    logits, target = _data()
    one, two = AccuracyListMeter(), AccuracyListMeter()
    one.update(logits, target)
    two.load_state_dict(one.state_dict())
    assert two.value() == one.value()
    two.load_sum([one.state_dict(), AccuracyListMeter().state_dict(), one.state_dict()])
    assert two.value() == one.value()
    one.reset()
    assert one.value() == {}


def _share() -> dict[str, object]:
    logits, target = _data()
    meter = AccuracyListMeter()
    part = slice(0, 11) if rank() == 0 else slice(11, 50)
    meter.update(logits[part], target[part])
    meter.value()  # asking twice does not count twice
    return meter.value()


def test_ranks_add_up_exactly(two_ranks: RankPool) -> None:
    logits, target = _data()
    for value in two_ranks.run(_share):
        assert value["top_1"]["0"] == pytest.approx(_sklearn(logits, target, 1))


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


def test_accuracy_takes_any_class_that_is_shown() -> None:
    meter = AccuracyListMeter(topk_values=[1, 2])
    meter.update(OUTPUT, SHOWN)
    assert meter.value() == {"top_1": {"0": 50.0}, "top_2": {"0": 100.0}}
    meter.reset()
    meter.update(OUTPUT, torch.tensor([[0, 1, 0, 0, 0], [0, 0, -1, 0, 0]]))
    assert meter.value() == {"top_1": {"0": 100.0}, "top_2": {"0": 100.0}}


# ---- totals of any meter


class _Mean(Meter):
    name = "mean"

    def update(self, output: Any, target: Tensor) -> None:
        self.add(torch.stack([output.sum(), torch.tensor(float(output.numel()))]))

    def measure(self, totals: list[float]) -> dict[str, Any]:
        return {"mean": totals[0] / totals[1]}


def test_totals_add_up_in_double_precision() -> None:
    meter = _Mean()
    assert meter.value() == {}
    for value in (1e8, 1.0, 1.0, 1.0):  # in float32 the ones would be lost
        meter.update(torch.tensor([value]), torch.tensor(0))
    assert meter.value() == {"mean": (1e8 + 3) / 4}
    meter.load_sum([{"totals": None}])
    assert meter.value() == {}
