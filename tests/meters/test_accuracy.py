from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import top_k_accuracy_score
from torch import Tensor

from sslengine.distributed.ranks import rank
from sslengine.errors import TrainingError
from sslengine.meters.top_k import AccuracyListMeter
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


def test_several_outputs_by_name() -> None:
    _, target = _data()
    meter = AccuracyListMeter(meter_names=["right", "wrong"])
    perfect = torch.nn.functional.one_hot(target, 7).float()
    meter.update([perfect, -perfect], target)
    assert meter.value() == {"top_1": {"right": 100.0, "wrong": 0.0}}


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


def test_mismatches_are_told() -> None:
    logits, target = _data()
    with pytest.raises(TrainingError, match="expects 1 outputs, but the model has 2"):
        AccuracyListMeter().update([logits, logits], target)
    with pytest.raises(TrainingError, match="top 9 of 7 classes"):
        AccuracyListMeter(topk_values=[9]).update(logits, target)
